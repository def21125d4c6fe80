"""What a model's heads do, measured in this process, without Ray and without a queue."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from model import packing
from service.engine.lanes import Lanes
from service.heads.sentences import Corpus
from service.heads.survey import survey_heads
from service.shapes.work import Outputs, Result, Work, cosine


def survey_alone(
    lanes: Lanes, name: str, corpus: Corpus, thresholds: Mapping[str, float]
) -> dict[str, Any]:
    """Measure every head in the calling thread; return the answer of GET /v1/heads.

    Raises:
        SequenceTooLong: as of `survey_heads`.
    """

    async def run(works: Sequence[Work]) -> list[Result]:
        """Run a batch here and now."""
        return _run_works(lanes, works)

    return asyncio.run(survey_heads(lanes.model, name, corpus, run, thresholds))


def ablate_heads(lanes: Lanes, text: str) -> list[list[float]]:
    """Return how far a text's encoding moves without each head, by layer.

        moved(h) = 1 - cos(pooled, pooled with head h's mixed values set to 0 before W^O)

    Only heads of one layer compare: what the last layer writes is pooled as it is, while what
    an earlier one writes goes through all that follow. Source: Michel et al. 2019, "Are Sixteen
    Heads Really Better than One?", section 3.2.

    Raises:
        SequenceTooLong: the model does not take the text.
    """
    model, outputs = lanes.model, Outputs(lanes.model.pooling)
    ids = model.tokenizer([(text,)], model.max_tokens)[0].token_ids
    (whole,) = _run_works(lanes, [Work(packing.Sequence(ids), outputs)])
    moved = []
    for layer in range(model.config.layers):
        gates = ({layer: {head: 0.0}} for head in range(model.config.heads))
        works = [Work(packing.Sequence(ids, gates=each), outputs) for each in gates]
        results = _run_works(lanes, works)
        moved.append([1 - cosine(result.vector, whole.vector) for result in results])
    return moved


def _run_works(lanes: Lanes, works: Sequence[Work]) -> list[Result]:
    """Run works as a batch in this thread and return their results; raise what one raised."""
    results = []
    for result in lanes.run_batch(works, torch.get_num_threads()):
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results
