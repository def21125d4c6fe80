"""`headlight heads`: measure what a model's heads do, print it, draw it, keep it.

Everything happens in this process, without Ray and without a queue.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from headlight_client import pictures
from model import packing
from model.errors import CheckpointError, SequenceTooLong
from model.heads import roles
from model.maps import maps
from model.maps.tiles import MapReader
from model.pooling import pool_each
from model.text.frame import Tokenized
from service.commands import grid
from service.commands.terminal import Unusable, drawing
from service.engine.loading import load_model
from service.engine.weights import ModelNotFound, locate_model
from service.heads import sentences, store
from service.heads.sentences import BadCorpus, Corpus
from service.heads.survey import survey_heads
from service.wording.values import word_error
from service.wording.words import list_names

CPU = torch.device("cpu")
BATCH_SIZE = 16  # copies of a text in one pass


def measure_heads(
    model: str,
    *,
    corpus: Path | None,
    threshold: Iterable[str],
    plot: Path | None,
    saved: Path | None,
) -> None:
    """Measure what a model's heads do, print it and store it where GET /v1/heads finds it.

    Args:
        corpus: file of sentences; None: the bundled ones.
        threshold: thresholds in place of the default ones, each as ROLE=NUMBER.
        plot: where to draw the grid.
        saved: where to write the answer of GET /v1/heads, too.

    Raises:
        Unusable: a file, a threshold, the model or a sentence is wrong; nothing was measured.
        OSError: the picture or the answer cannot be written.
    """
    console = Console()
    try:
        thresholds = {**roles.THRESHOLDS, **dict(map(_read_threshold, threshold))}
        sample = sentences.read_corpus(corpus) if corpus else sentences.read_bundled()
        if plot:
            with drawing():
                pictures.check_picture(plot, "--plot")
        survey = _measure_model(model, sample, thresholds)
    except (BadCorpus, ModelNotFound, CheckpointError, OSError) as error:
        raise Unusable(word_error(error)) from error
    for draw in (grid.draw_heads, grid.draw_roles, grid.draw_mechanisms, grid.draw_relations):
        console.print(draw(survey))
    if plot:
        with drawing():
            pictures.draw_heads(survey).save(plot)
    if saved:
        saved.write_bytes(store.serialize(survey))
    try:  # without a cache, what was printed still holds
        console.print(f"saved in {store.store_survey(survey)} for GET /v1/heads", soft_wrap=True)
    except OSError as error:
        console.print(f"not saved: {word_error(error)}", soft_wrap=True)


def print_ablation(model: str, text: str) -> None:
    """Print how far a text's encoding moves without each head.

    Raises:
        Unusable: the model cannot be loaded, or the text is too long for it.
    """
    try:
        distances = LoadedModel(model).ablate(text)
    except (ModelNotFound, CheckpointError) as error:
        raise Unusable(str(error)) from error
    except SequenceTooLong as error:
        reason = f"the text has {error.length} tokens; {model} takes at most {error.limit}"
        raise Unusable(reason) from error
    Console().print(grid.draw_ablations(distances.tolist()))


def _read_threshold(text: str) -> tuple[str, float]:
    """Parse ROLE=NUMBER into the role and its threshold.

    Raises:
        Unusable: no such role, or no number from 0 to 1.
    """
    role, _, number = text.partition("=")
    if role not in roles.THRESHOLDS:
        named = list_names(roles.THRESHOLDS)
        raise Unusable(f"--threshold must be ROLE=NUMBER, the ROLE {named}, got {text!r}")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise Unusable(f"--threshold of {role} must be a number from 0 to 1, got {text!r}")
    return role, value


def _measure_model(model: str, corpus: Corpus, thresholds: dict[str, float]) -> dict[str, Any]:
    """Load a model and return the survey of its heads; raises BadCorpus for a long sentence."""
    loaded = LoadedModel(model)
    try:
        with Console(stderr=True).status(f"reading {len(corpus.sentences)} sentences"):
            return loaded.measure(corpus, thresholds)
    except SequenceTooLong as error:
        line = corpus.sentences[error.index].line
        reason = f"{error.length} tokens; {loaded.name} takes at most {error.limit}"
        raise BadCorpus(f"{corpus.name} line {line}: {reason}") from error


class LoadedModel:
    """A model loaded in float32 on the CPU.

    Args:
        name: a model as --model names it.

    Raises:
        ModelNotFound, CheckpointError: the model cannot be loaded; says why.
    """

    def __init__(self, name: str) -> None:
        source = locate_model(name)
        self.name, self.model = source.name, load_model(source, CPU, torch.float32)

    def measure(self, corpus: Corpus, thresholds: Mapping[str, float]) -> dict[str, Any]:
        """Return what each head does on a corpus, as GET /v1/heads answers."""
        survey = survey_heads(self.model, self.name, corpus, self._attend, thresholds)
        return asyncio.run(survey)

    @torch.inference_mode()
    def ablate(self, text: str) -> Tensor:
        """Return how far the text's encoding moves without each head, (layers, heads).

            moved(h) = 1 - cos(pooled, pooled with head h's mixed values set to 0 before W^O)

        Only heads of one layer compare: what the last layer writes is pooled as it is, while what
        an earlier one writes goes through all that follow. Source: Michel et al. 2019, "Are Sixteen
        Heads Really Better than One?", section 3.2.

        Raises:
            SequenceTooLong: the model does not take the text.
        """
        encoder, layers = self.model.encoder, range(self.model.config.layers)
        ids = self.model.tokenizer([(text,)], self.model.max_tokens)[0].token_ids
        heads = [(layer, head) for layer in layers for head in range(self.model.config.heads)]
        copies = [packing.Sequence(ids)]
        copies += [packing.Sequence(ids, gates={layer: {head: 0.0}}) for layer, head in heads]
        vectors: list[Tensor] = []
        for first in range(0, len(copies), BATCH_SIZE):
            packed = encoder.pack(copies[first : first + BATCH_SIZE])
            rows = [packed.rows(index) for index in range(len(packed.lengths))]
            vectors += pool_each(encoder(packed).last, rows, self.model.pooling)
        pooled = torch.stack(vectors).double()
        return (1 - torch.cosine_similarity(pooled[1:], pooled[:1])).view(len(layers), -1)

    async def _attend(self, texts: Sequence[Tokenized]) -> list[Tensor]:
        """Return the maps of each text, as the survey awaits them."""
        encoder, every = self.model.encoder, list[Tensor]()
        sequences = [packing.Sequence(text.token_ids, text.types) for text in texts]
        packed, heads = encoder.pack(sequences), tuple(range(encoder.config.heads))
        with torch.inference_mode():
            traces = encoder(packed, traces=frozenset(range(encoder.config.layers))).traces
            for index in range(len(sequences)):
                own = packed.rows(index)
                readers = (MapReader(traces[layer], own, heads) for layer in sorted(traces))
                every.append(torch.cat([*map(maps.full_maps, readers)]))
        return every
