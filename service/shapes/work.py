"""The unit of work of a lane: one sequence, what to compute of it, and its results."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model import packing
from model.carried import Sources
from model.head_shares import Targets
from model.maps.forms import Selection
from model.pooling import Pooling
from model.task_heads import TaskHead
from model.text.frame import Role
from service.shapes.record import Record

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a sequence that are pooled to a vector each."""

    tokens: Sequence[tuple[int, int]]  # range of each part's tokens, [first, end)
    pooling: Pooling  # how each is pooled


@dataclass(frozen=True, slots=True)
class Outputs:
    """What to compute and return of one sequence; by default nothing."""

    pooling: Pooling | None = None  # how to pool it to one vector; None: not at all
    tokens: bool = False  # whether to return the token vectors of the last layer
    hidden: frozenset[int] = frozenset()  # states to return, 0 = embeddings, i = after i layers
    attention: Selection | None = None  # which attention maps to return
    explained_layer: int | None = None  # the layer to return every step of
    weights: bool = False  # whether to return the weights of that layer too
    carried: Sources | None = None  # parts of its input to carry through the layers
    targets: Targets | None = None  # what each head's shares are of
    parts: Parts | None = None  # parts of the sequence to pool by themselves
    task_heads: tuple[TaskHead, ...] = ()  # heads to apply, with the request's options
    kept: frozenset[int] = frozenset()  # layers whose state other works need
    swept: int = 0  # numbers per sequence that the answer shows of the copies of a sweep

    @property
    def states(self) -> frozenset[int]:
        """Return the hidden states to compute, returned or not."""
        states = self.hidden | self.kept
        return states if self.explained_layer is None else states | {self.explained_layer}

    @property
    def traces(self) -> Collection[int]:
        """Return the layers whose attention to record, shown or not."""
        shown = self.attention
        return self.kept.union(shown.heads if shown and shown.form != "why" else ())


@dataclass(frozen=True, slots=True)
class Maps:
    """Attention maps of one sequence; model.maps.forms.Shown as arrays."""

    path: str  # name of the kernels that computed them; see model.kernels.Kernels
    heads: Mapping[int, Mapping[str, Array]]  # arrays by layer, then by name
    whole: Mapping[str, Array]  # arrays of all layers together, by name


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of one sequence, as Outputs asks for them; real numbers as float32."""

    pooled: Array | None = None  # the pooled vector, (width or dimensions,)
    tokens: Array | None = None  # token vectors, (tokens, width)
    hidden: dict[int, Array] = field(default_factory=dict)  # (tokens, width) by hidden state
    attention: Maps | None = None  # maps asked for
    steps: dict[str, Array] = field(default_factory=dict)  # steps of the explained layer, by name
    parts: Array | None = None  # vectors of parts, (parts, width or dimensions)
    carried: Array | None = None  # what each source carried adds, (sources, modes * width)
    shares: Array | None = None  # of heads and the rest, (layers, heads + 1, targets)
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
    edited_heads: int = 0  # upper bound of its heads that are gated or patched
    result: Result = field(init=False)  # outputs of the model, set by Admission after the run

    @property
    def truncated(self) -> bool:
        """Tell whether the sequence was truncated."""
        return len(self) < self.length

    def __len__(self) -> int:
        """Return the number of tokens."""
        sequence = self.sequence  # len(sequence) would take twice as many calls
        return len(sequence.token_ids or ()) if sequence.embeddings is None else len(sequence)


def cosine(left: Array, right: Array) -> float:
    """Return the cosine of two float64 vectors; 0 if one is zero."""
    length = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / length) if length else 0.0
