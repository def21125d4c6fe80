"""What a lane is given for one sequence, and what comes out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model import packing
from model.maps.forms import Selection
from model.pooling import Pooling
from model.task_heads import TaskHead
from model.text.frame import Role
from service.observe.record import Record

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a sequence that get a vector each.

    Args:
        tokens: of each part, [first, last).
    """

    tokens: Sequence[tuple[int, int]]
    pooling: Pooling


@dataclass(frozen=True, slots=True)
class Outputs:
    """What to return of one sequence; by default nothing.

    Args:
        hidden: hidden states, 0 = embeddings, i = after i layers.
        attention: what to show of it.
        explained_layer: the one to return every step of.
        weights: whether with the weights that make them.
        parts: parts to pool by themselves.
        task_heads: the checkpoint's own, as the request wants them, where they are asked.
        kept: layers that other works are to enter or to take values from.
        swept: numbers that the answer has of its copies.
    """

    pooling: Pooling | None = None
    tokens: bool = False
    hidden: frozenset[int] = frozenset()
    attention: Selection | None = None
    explained_layer: int | None = None
    weights: bool = False
    parts: Parts | None = None
    task_heads: tuple[TaskHead, ...] = ()
    kept: frozenset[int] = frozenset()
    swept: int = 0

    @property
    def states(self) -> frozenset[int]:
        """Return the hidden states it takes, returned or not."""
        states = self.hidden | self.kept
        return states if self.explained_layer is None else states | {self.explained_layer}

    @property
    def traces(self) -> Collection[int]:
        """Return the layers whose attention it takes, shown or not."""
        return self.kept.union(self.attention.heads if self.attention else ())


@dataclass(frozen=True, slots=True)
class Maps:
    """What is shown of one sequence's attention; model.maps.forms.Shown as arrays.

    Args:
        path: which kernels computed it; see model.kernels.Kernels.
    """

    path: str
    heads: Mapping[int, Mapping[str, Array]]
    whole: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Result:
    """What came out for one sequence, real numbers as float32.

    Args:
        pooled: (width or dimensions,).
        tokens: (tokens, width).
        hidden: (tokens, width) by hidden state.
        steps: the explained layer's and its weights, by name; see model/lessons.py.
        parts: (parts, width or dimensions).
        task: what the task heads made of it, by name; see model/task_heads.py.
        kept: where other passes may begin, by layer.
    """

    pooled: Array | None = None
    tokens: Array | None = None
    hidden: dict[int, Array] = field(default_factory=dict)
    attention: Maps | None = None
    steps: dict[str, Array] = field(default_factory=dict)
    parts: Array | None = None
    task: dict[str, Array] = field(default_factory=dict)
    kept: dict[int, packing.Entry] = field(default_factory=dict)

    @property
    def vector(self) -> Array:
        """Return the pooled vector, which was asked for, as float64."""
        if self.pooled is None:
            raise RuntimeError("a vector that was asked for is missing: this is a bug")
        return self.pooled.astype(np.float64)


@dataclass(slots=True, eq=False)
class Work:
    """One input as the model runs it, what is wanted of it, and what came out.

    The reader makes it, and fills what no other stage is named for.

    Args:
        outputs: of its side; a question may ask for more.
        record: the request it is of, for those who count and trace; None where no client asked.
        entered: the layer in which its pass begins; None: at the embeddings. A sweep says so.
        length: tokens before truncation; if they are not counted, at least so many.
        facts: its tokens as the answer shows them.
        role: the side of a late interaction that it was read for.
        adapter: the name of what is added to the model's linears; None: nothing.
        edited_heads: those that are gated or patched, at most; interventions count them.

    Attributes:
        result: what a lane made of it, which admission fills in.
    """

    sequence: packing.Sequence
    outputs: Outputs
    record: Record | None = None
    entered: int | None = None
    length: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    role: Role | None = None
    adapter: str | None = None
    edited_heads: int = 0
    result: Result = field(init=False)

    @property
    def truncated(self) -> bool:
        """Tell whether it was cut."""
        return len(self) < self.length

    def __len__(self) -> int:
        sequence = self.sequence  # its own length takes as many calls again
        return len(sequence.token_ids or ()) if sequence.embeddings is None else len(sequence)


def cosine(left: Array, right: Array) -> float:
    """Return the cosine of two vectors, float64; 0 where one has no length."""
    length = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / length) if length else 0.0
