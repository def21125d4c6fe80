"""A request -> what it changes in passes: gates and patches of each input, and its sweep."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from model.config import EncoderConfig
from model.encoder import Encoder
from model.task_heads import Classifier
from service.api.native.heads import Sweep
from service.api.native.request import EncodeRequest
from service.encode.indices import heads_by_layer
from service.encode.inputs import ModelInput
from service.encode.interventions.course import Course, Heads
from service.encode.interventions.edits import Edits, check_lengths, edits
from service.engine.work import Outputs, Work
from service.refusals import Refused

NUMBER_BYTES = 4  # of a float32
MOST_COPIES = 4096  # of a request, which take a lane some 50 us each beside their tokens

NOTHING = (
    'a sweep answers how vectors or classes move, and this request has "pooled": false '
    'and no "classify"'
)

BLENDED = (
    "a sweep's copies begin inside a layer, and this model's vectors are blended of the layers "
    'before it too (WeightedLayerPooling); "gates" answers one head at a time'
)

CheckTokens = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Interventions:
    """What a request changes.

    Args:
        edits: of each input.
        heads: that its sweep scales; empty without a sweep.
        scale: by which.
    """

    config: EncoderConfig
    edits: Sequence[Edits]
    heads: Heads = field(default_factory=dict)
    scale: float = 0.0

    @classmethod
    def of(cls, request: EncodeRequest, outputs: Outputs, encoder: Encoder) -> "Interventions":
        """Those of a request, before any input is read.

        Args:
            outputs: of each of its inputs.

        Raises:
            Refused: a head or an input that does not exist, more copies than may be, a sweep of
                nothing, or one of a model whose vectors are made of states that copies skip.
        """
        config = encoder.config
        each = edits(request, config)
        if request.sweep is None:
            return cls(config, each)
        sweep = Sweep() if request.sweep == "heads" else request.sweep
        if not _swept(outputs):
            raise Refused.at("out_of_range", "sweep", detail=NOTHING)
        if encoder.blend is not None:
            raise Refused.at("out_of_range", "sweep", detail=BLENDED)
        limits = {"layers": config.layers, "heads": config.heads}
        try:
            heads = heads_by_layer(sweep, **limits)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", "sweep", detail=detail, **limits) from None
        copies = sum(map(len, heads.values())) * len(request.items)
        if copies > MOST_COPIES:
            detail = f"it takes {copies:,} copies of inputs, and the limit is {MOST_COPIES:,}"
            raise Refused.at("batch_too_large", "sweep", detail=detail, limit=MOST_COPIES)
        return cls(config, each, heads, sweep.scale)

    @property
    def none(self) -> bool:
        """Whether it changes nothing."""
        return not self.heads and not any(one.gates or one.patches for one in self.edits)

    def check(self, inputs: Sequence[ModelInput], check_tokens: CheckTokens) -> None:
        """Refuse values of an input of another length, and more work or memory than may be.

        Args:
            check_tokens: refuses too many tokens of a request; told what holds them.
        """
        check_lengths(self.edits, inputs)
        lengths, layers = [len(one.sequence) for one in inputs], self.config.layers
        passes = sum(len(heads) * (layers - layer) for layer, heads in self.heads.items()) / layers
        tokens = math.ceil((1 + passes) * sum(lengths))
        check_tokens(tokens, "with its sweep it takes the work of")
        kept = zip(self._kept(), lengths, strict=True)
        check_tokens(sum(len(each) * length for each, length in kept), "it keeps the states of")

    def applied(self, works: Sequence[Work]) -> list[Work]:
        """Works with their gates, and with what the course takes of them."""
        return [
            replace(
                work,
                sequence=replace(work.sequence, gates=one.gates),
                outputs=replace(work.outputs, kept=kept, swept=self._numbers(work.outputs)),
            )
            if one.gates or kept
            else work
            for work, one, kept in zip(works, self.edits, self._kept(), strict=True)
        ]

    def course(self, works: Sequence[Work]) -> Course | None:
        """How works follow from each other; None where they do not.

        Args:
            works: as `applied` gives them.
        """
        if not self.heads and not any(one.patches for one in self.edits):
            return None
        width, copied = self.config.width, _swept(works[0].outputs) or Outputs()
        copies = [
            copy
            for work in works
            for layer, heads in self.heads.items()
            for copy in [replace(work, outputs=copied, entered=layer)] * len(heads)
        ]
        states = 2 * width * sum(len(work) * len(work.outputs.kept) for work in works)
        vectors = len(copies) * (copied.pooling.size(width) if copied.pooling else 0)
        held = NUMBER_BYTES * (states + vectors)
        head = self.config.head_dim
        return Course(works, self.edits, head, self.heads, self.scale, copies, held)

    def _kept(self) -> list[frozenset[int]]:
        """The layers of each input that copies enter, or that values are taken from."""
        kept = [set(self.heads) for _ in self.edits]
        for one in self.edits:
            for layer, source in one.sources:
                kept[source].add(layer)
        return list(map(frozenset, kept))

    def _numbers(self, outputs: Outputs) -> int:
        """How many numbers are answered of one input's copies."""
        copied = _swept(outputs) or Outputs()
        classes = len(copied.head.labels) if isinstance(copied.head, Classifier) else 0
        return sum(map(len, self.heads.values())) * (bool(copied.pooling) + classes)


def _swept(outputs: Outputs) -> Outputs | None:
    """What of an input's outputs a sweep is about; None: nothing."""
    head = outputs.head if isinstance(outputs.head, Classifier) else None
    return Outputs(outputs.pooling, head=head) if outputs.pooling or head else None
