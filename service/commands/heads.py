"""`headlight heads`: measure what a model's heads do, print it, draw it, keep it.

Everything happens in this process, without Ray and without a queue.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from headlight_client import pictures
from model.errors import CheckpointError, SequenceTooLong
from model.heads import roles
from service.commands import grid
from service.commands.terminal import Unusable, drawing
from service.engine.lanes import Lanes
from service.files.loading import load_model
from service.files.weights import ModelNotFound, locate_model
from service.heads import sentences, store
from service.heads.alone import ablate_heads, survey_alone
from service.heads.sentences import BadCorpus, Corpus
from service.tables.wording.values import word_error
from service.tables.wording.words import list_names


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
        moved = ablate_heads(_load_lanes(model)[1], text)
    except (ModelNotFound, CheckpointError) as error:
        raise Unusable(str(error)) from error
    except SequenceTooLong as error:
        reason = f"the text has {error.length} tokens; {model} takes at most {error.limit}"
        raise Unusable(reason) from error
    Console().print(grid.draw_ablations(moved))


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
    name, lanes = _load_lanes(model)
    try:
        with Console(stderr=True).status(f"reading {len(corpus.sentences)} sentences"):
            return survey_alone(lanes, name, corpus, thresholds)
    except SequenceTooLong as error:
        line = corpus.sentences[error.index].line
        reason = f"{error.length} tokens; {name} takes at most {error.limit}"
        raise BadCorpus(f"{corpus.name} line {line}: {reason}") from error


def _load_lanes(model: str) -> tuple[str, Lanes]:
    """Return the name of a model, as --model names it, and it in float32 on the CPU.

    Raises:
        ModelNotFound, CheckpointError: the model cannot be loaded; says why.
    """
    source = locate_model(model)
    return source.name, Lanes(load_model(source, torch.device("cpu"), torch.float32), [])
