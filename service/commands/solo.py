"""One model in this process, without Ray and without a queue: what `headlight heads` asks of it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from model import packing
from model.heads.ablation import ablate
from model.maps import maps
from model.maps.tiles import Look
from model.text.frame import Tokenized
from service.engine.loading import load
from service.engine.weights import locate
from service.heads.sentences import Corpus
from service.heads.survey import measure

CPU = torch.device("cpu")


class Solo:
    """A loaded model, float32 on the processor.

    Args:
        name: a model as --model names it.

    Raises:
        ModelNotFound, CheckpointError: why there is none.
    """

    def __init__(self, name: str) -> None:
        place = locate(name)
        self.name, self.model = place.name, load(place, CPU, torch.float32)

    def measure(self, corpus: Corpus, thresholds: Mapping[str, float]) -> dict[str, Any]:
        """What each head does on a corpus."""

        async def attend(sequences: Sequence[Tokenized]) -> list[Tensor]:
            return self._attend(sequences)

        return asyncio.run(measure(self.model, self.name, corpus, attend, thresholds))

    @torch.inference_mode()
    def ablate(self, text: str) -> Tensor:
        """How far the text's encoding moves without each head, (layers, heads).

        Raises:
            SequenceTooLong: the model does not take the text.
        """
        (sequence,) = self.model.tokenizer([(text,)], self.model.max_tokens)
        return ablate(self.model.encoder, sequence.token_ids, self.model.pooling)

    @torch.inference_mode()
    def _attend(self, sequences: Sequence[Tokenized]) -> list[Tensor]:
        """The maps of all heads of all layers of each sequence, (heads, query, key)."""
        encoder = self.model.encoder
        packed = encoder.pack([packing.Sequence(one.token_ids, one.types) for one in sequences])
        traces = encoder(packed, traces=frozenset(range(encoder.config.layers))).traces
        heads = range(encoder.config.heads)
        return [
            torch.cat(
                [
                    maps.full(Look(trace, packed.rows(index), heads))
                    for _, trace in sorted(traces.items())
                ]
            )
            for index in range(len(sequences))
        ]
