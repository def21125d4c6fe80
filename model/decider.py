"""The head of a decision model: a logit for each option of a question that a sequence holds.

    encoder      its last states, and the type embedding of the question's kind
    layers       pre-norm layers without a last norm, in which every token sees every token
    read         LayerNorm, Linear, GELU, Linear at each option's mask token

Source: laya 0.4.15, `laya.common.DecisionModel`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from model import packing
from model.config import Task
from model.decisions import KINDS, Kind, Temperatures
from model.encoder import Encoded, Encoder
from model.flops import pass_flops
from model.packing import send
from model.projection import Projection
from model.text.pieces import CutSide

NUMBER_SIZE = 4  # bytes of a float32


class Marks(NamedTuple):
    """The special tokens of a decision's sequence.

    Args:
        cls, separator, mask: their ids.
        mask_text: the mask token as a text spells it.
        side: where the tokenizer cuts an option that is too long.
    """

    cls: int
    separator: int
    mask: int
    mask_text: str
    side: CutSide


@dataclass(frozen=True, slots=True, eq=False)
class Decider:
    """Scores the options of a question, each at its mask token.

    Args:
        types: added to every token by the question's kind, (kinds, width).
        layers: pre-norm layers in which every token sees every token; None: there are none.
        project: maps an option's mask token to its logit.
        temperatures: what logits are divided by before the softmax.
        window: tokens that a sequence may have in the checkpoint's own reading, and of these
            those that its question and options may have.
        marks: the special tokens that a sequence is built with.
        kind: of the sequence's question.
        markers: places of the options' mask tokens.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("decide",)  # that the head serves

    types: Tensor
    layers: Encoder | None
    project: Projection
    temperatures: Temperatures
    window: tuple[int, int]
    marks: Marks
    kind: Kind = "choice"
    markers: Sequence[int] = ()

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Score (tokens, width) -> logits of the options, (options,)."""
        (logits,) = decide_together([self], [tokens])
        return {"logits": logits}

    def read(self, last: Tensor) -> Tensor:
        """Return the options' logits, (options,), of what leaves the layers, (tokens, width)."""
        places = send(torch.tensor(self.markers, dtype=torch.long), last.device)
        return self.project(last[places])[:, 0]

    def run_layers(self, tokens: Tensor, traces: frozenset[int] = frozenset()) -> Encoded:
        """Run the layers over (tokens, width); keep the attention of some, counted from 0."""
        if self.layers is None:
            raise RuntimeError("a head without layers: this is a bug")
        return self.layers(self.layers.pack([self.sequence(tokens)]), traces=traces)

    def sequence(self, tokens: Tensor) -> packing.Sequence:
        """Return (tokens, width) as the layers read them."""
        types = [KINDS.index(self.kind)] * len(tokens)
        return packing.Sequence(types=types, embeddings=tokens.float())

    def count_bytes(self, tokens: int, number: int = NUMBER_SIZE) -> int:
        """Count the bytes of an answer: a number for each option."""
        return NUMBER_SIZE * len(self.markers)

    def count_flops(self, tokens: int) -> int:
        """Count the floating-point operations for a sequence of so many tokens."""
        layers = 0 if self.layers is None else pass_flops(self.layers.config, tokens)
        return layers + self.project.count_flops(len(self.markers))


def decide_together(heads: Sequence[Decider], tokens: Sequence[Tensor]) -> list[Tensor]:
    """Score several sequences by heads of one checkpoint; each has the bits that it has alone.

    Args:
        tokens: of each, (tokens, width).

    Returns:
        The logits of each one's options, (options,).
    """
    layers, pairs = heads[0].layers, list(zip(heads, tokens, strict=True))
    if layers is None:
        return [head.read(own.float() + head.types[KINDS.index(head.kind)]) for head, own in pairs]
    packed = layers.pack([head.sequence(own) for head, own in pairs])
    last = layers(packed).last
    return [head.read(last[packed.rows(index)]) for index, head in enumerate(heads)]
