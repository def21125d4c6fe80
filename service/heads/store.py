"""The survey of a model's heads, stored by the digest of its weights; made if there is none.

It is looked up in the user's cache, where `headlight heads` leaves it, then among the surveys that
come with this package.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import orjson

from model.loading.checkpoint import Model
from service.files import cache
from service.heads import sentences
from service.heads.survey import survey_heads
from service.shapes.work import Result, Work
from service.tables.refusals import Refused

logger = logging.getLogger(__name__)

SURVEY_VERSION = 4  # changes when equal weights and sentences would give a different survey

# Runs works within a deadline and returns their results; see service/pipeline/admission.py
RunWorks = Callable[[Sequence[Work], float], Awaitable[list[Result]]]


class StoredSurvey:
    """Answers GET /v1/heads with the stored survey, made once where there is none.

    Args:
        name: what clients call the model.
        run: runs works in batches of the model.
        batch_seconds: how long a batch of the survey may wait among other requests.
    """

    def __init__(self, model: Model, name: str, run: RunWorks, batch_seconds: float) -> None:
        self._model, self._name, self._run = model, name, run
        self._batch_seconds = batch_seconds
        self._task: asyncio.Task[dict[str, Any]] | None = None
        # reads what is stored, again once the mark has changed
        self._read_stored = lru_cache(maxsize=1)(lambda mark: read_stored(model.digest))

    async def answer(self, deadline: float) -> dict[str, Any]:
        """Return the stored survey; if there is none, wait for it to be made.

        A caller that stops waiting does not stop it.

        Raises:
            Refused: it is not there by the deadline, or the model is busy.
        """
        digest = self._model.digest
        survey = await asyncio.to_thread(lambda: self._read_stored(_mark_stored(digest)))
        if survey is None:
            if self._task is None:
                self._task = asyncio.create_task(self._make_survey())
                self._task.add_done_callback(self._keep_finished)
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    survey = await asyncio.shield(self._task)
            except TimeoutError:
                raise Refused("deadline_exceeded") from None
        return {**survey, "model": self._name}

    def close(self) -> None:
        """Cancel the survey that is being made."""
        if self._task:
            self._task.cancel()

    async def _make_survey(self) -> dict[str, Any]:
        """Measure the heads on the bundled corpus, and store the survey if possible."""

        async def run(works: Sequence[Work]) -> list[Result]:
            """Run a batch among the requests."""
            return await self._run(works, time.monotonic() + self._batch_seconds)

        survey = await survey_heads(self._model, self._name, sentences.read_bundled(), run)
        try:
            await asyncio.to_thread(store_survey, survey)
        except OSError as error:
            logger.warning("heads not stored", extra={"reason": str(error)})
        return survey

    def _keep_finished(self, task: asyncio.Task[dict[str, Any]]) -> None:
        """Keep a finished survey, which may be stored nowhere else; let a failed one be retried."""
        if task.cancelled() or task.exception():
            self._task = None


def read_stored(digest: str) -> dict[str, Any] | None:
    """Return the survey stored for these weights, None if there is none of this version."""
    for find_path in (_cached_path, _shipped_path):
        with suppress(OSError, ValueError):
            survey = orjson.loads(find_path(digest).read_bytes())
            if isinstance(survey, dict) and _is_current(survey, digest):
                del survey["format"]
                return survey
    return None


def store_survey(survey: dict[str, Any]) -> Path:
    """Write a survey into the user's cache, whole or not at all; return its path.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _cached_path(survey["weights"])
    cache.write_whole(path, serialize(survey))
    return path


def serialize(survey: dict[str, Any]) -> bytes:
    """Return a survey as JSON, as it is stored and as it ships with this package."""
    return orjson.dumps({"format": SURVEY_VERSION, **survey}, option=orjson.OPT_INDENT_2) + b"\n"


def _is_current(survey: dict[str, Any], digest: str) -> bool:
    """Tell whether a survey is of these weights, by the current rules and sentences."""
    ours = sentences.read_bundled().describe()
    corpus = survey.get("corpus")
    current = isinstance(corpus, dict) and (corpus.get("name") != ours["name"] or corpus == ours)
    return current and survey.get("format") == SURVEY_VERSION and survey.get("weights") == digest


def _mark_stored(digest: str) -> tuple[Any, ...]:
    """Return what changes whenever `read_stored` may find another survey."""
    ours = sentences.read_bundled().digest
    with suppress(OSError):
        state = _cached_path(digest).stat()
        return ours, state.st_ino, state.st_mtime_ns, state.st_size
    return (ours,)


def _cached_path(digest: str) -> Path:
    """Return the path of the survey of these weights in the user's cache."""
    return cache.cache_folder() / f"heads-{digest.removeprefix('sha256:')}.json"


def _shipped_path(digest: str) -> Traversable:
    """Return the path of the survey of these weights in this package."""
    return files("service.heads").joinpath("measured", f"{digest.removeprefix('sha256:')}.json")
