"""The unit of work of a lane: one sequence, what to compute of it, and its results."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model import packing
from model.pooling import Pooling
from model.probes import Probe
from model.task_heads import TaskHead
from model.text.frame import Role
from service.shapes.record import Record

Array = NDArray[Any]
Asked = TypeVar("Asked", bound=Probe)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What to compute and return of one sequence; by default nothing."""

    pooling: Pooling | None = None  # how to pool it to one vector; None: not at all
    tokens: bool = False  # whether to return the token vectors of the last layer
    hidden: frozenset[int] = frozenset()  # states to return, 0 = embeddings, i = after i layers
    probes: tuple[Probe, ...] = ()  # what else to compute; see `asking`
    task_heads: tuple[TaskHead, ...] = ()  # heads to apply, with the request's options
    kept: frozenset[int] = frozenset()  # layers whose state other works need
    swept: int = 0  # numbers per sequence that the answer shows of the copies of a sweep

    @property
    def states(self) -> frozenset[int]:
        """Return the hidden states to compute, returned or not."""
        return self.hidden.union(self.kept, *(probe.states for probe in self.probes))

    @property
    def traces(self) -> frozenset[int]:
        """Return the layers whose attention to record, shown or not."""
        return self.kept.union(*(probe.traces for probe in self.probes))

    def probe(self, kind: type[Asked]) -> Asked | None:
        """Return the probe of this class; None: there is none."""
        for probe in self.probes:
            if isinstance(probe, kind):
                return probe
        return None

    def asking(self, probe: Probe) -> "Outputs":
        """Return these outputs with a probe, in place of another of its name."""
        others = [each for each in self.probes if each.name != probe.name]
        return replace(self, probes=(*others, probe))


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of one sequence, as Outputs asks for them; real numbers as float32."""

    pooled: Array | None = None  # the pooled vector, (width or dimensions,)
    tokens: Array | None = None  # token vectors, (tokens, width)
    hidden: dict[int, Array] = field(default_factory=dict)  # (tokens, width) by hidden state
    made: dict[str, Any] = field(default_factory=dict)  # by a probe's name, its `run` as arrays
    task: dict[str, Array] = field(default_factory=dict)  # outputs of the task heads, by name
    kept: dict[int, packing.Entry] = field(default_factory=dict)  # state inside each kept layer

    @property
    def vector(self) -> Array:
        """Return the pooled vector as float64; one must have been asked for."""
        if self.pooled is None:
            raise RuntimeError("a vector that was asked for is missing: this is a bug")
        return self.pooled.astype(np.float64)


@dataclass(slots=True, eq=False)
class Work:
    """One sequence to run through the model, what to compute of it, and its result."""

    sequence: packing.Sequence  # what the model reads
    outputs: Outputs  # what to compute; a question may add to what the reader has set
    record: Record | None = None  # of its request; None for the service's own work
    entered: int | None = None  # layer in which its pass begins; None: at the embeddings
    length: int = 0  # tokens before truncation, or a lower bound if they were not counted
    facts: Mapping[str, Any] = field(default_factory=dict)  # fields of its tokens in an answer
    role: Role | None = None  # how it was read: as a query or as a document
    adapter: str | None = None  # name of the LoRA adapter to apply; None: none
    blank: bool = False  # whether it is of a text without a token of its own, such as spaces
    edited_heads: int = 0  # upper bound of its heads that are gated or patched
    result: Result = field(init=False)  # outputs of the model, set by Admission after the run

    @property
    def truncated(self) -> bool:
        """Tell whether the sequence was truncated."""
        return len(self) < self.length

    @property
    def shown(self) -> dict[str, Any]:
        """Return the fields of its text in an answer: its tokens, and whether it was cut."""
        return {**self.facts, "truncated": len(self) < self.length, "length": self.length}

    def __len__(self) -> int:
        """Return the number of tokens."""
        sequence = self.sequence  # len(sequence) would take twice as many calls
        return len(sequence.token_ids or ()) if sequence.embeddings is None else len(sequence)


def cosine(left: Array, right: Array) -> float:
    """Return the cosine of two float64 vectors; 0 if one is zero."""
    length = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / length) if length else 0.0
