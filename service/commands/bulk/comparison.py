"""`headlight space compare`: two services' vectors of the same texts, and how they differ.

Each side's vectors are written to a file of the user's cache (vectors.py), a request after the
other, and each request's cost to the row of its first text; the same command goes on from there.
Then the neighbours and likenesses of the distinct texts are compared (neighbours.py).
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from headlight_client import Encoded
from headlight_client.formats import Array
from headlight_client.spaces import FACTS
from service.commands.bulk import neighbours
from service.commands.bulk.jobs import (
    PATIENCE_SECONDS,
    Truncate,
    bar,
    collect,
    connected,
    origin_of,
)
from service.commands.bulk.neighbours import Floats, Places, Rows
from service.commands.bulk.source import File, Source, check
from service.commands.bulk.vectors import DTYPE, Vectors
from service.commands.terminal import Failed, Unusable
from service.heads import cache

NEIGHBOURS = 10
MOST_TEXTS = 50_000  # every likeness is computed: the time grows with the square
MOVED = 10  # texts that are listed
NAMES = ("a", "b")
DIGITS = 16  # of the digest in a file's name
REMEDY = "remove it to start over"


class Asked(NamedTuple):
    """One of the two services."""

    url: str
    key: str | None


class Cost(NamedTuple):
    """What a request took; in a row of float32.

    Args:
        truncated: texts that were cut.
        model_seconds: as the service says; what its lanes do side by side counts once for each.
        seconds: from here, with the way there and all waiting.
    """

    tokens: float
    truncated: float
    model_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Side:
    """One service's part of a comparison.

    Args:
        facts: of GET /info: model, weights, numerics, space, space_parts and space_bound.
        neighbours: (texts, NEIGHBOURS) places among the texts, the nearest first.
        likenesses: (pairs,).
    """

    url: str
    facts: Mapping[str, Any]
    dimensions: int
    cost: Cost
    neighbours: Places
    likenesses: Floats


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two services' vectors of the same texts.

    Args:
        lines: the place in the file of each distinct text, (texts,).
        shared: how many of its neighbours each text has on both sides, (texts,).
        correlation: of the likenesses' ranks; None where all of one side are equal.
        texts: by place, those that moved most and those that are their neighbours.
    """

    lines: Places
    duplicates: int
    sides: Sequence[Side]
    shared: NDArray[np.int64]
    correlation: float | None
    texts: Mapping[int, str]

    @property
    def overlap(self) -> float:
        """Return the share of the neighbours that are neighbours on both sides."""
        return float(self.shared.mean()) / NEIGHBOURS

    @property
    def chance(self) -> float:
        """Return the overlap of neighbours that are drawn blindly."""
        return NEIGHBOURS / (len(self.lines) - 1)

    @property
    def pairs(self) -> int:
        """Count the pairs of which the likenesses are correlated."""
        return len(self.sides[0].likenesses)

    @property
    def sampled(self) -> bool:
        """Tell whether these are some of more."""
        return self.pairs < len(self.lines) * (len(self.lines) - 1) // 2

    @property
    def facts(self) -> dict[str, Any]:
        """Describe it for programs."""
        return {
            "texts": len(self.lines),
            "duplicates": self.duplicates,
            "neighbours": NEIGHBOURS,
            "overlap": self.overlap,
            "overlap_by_chance": self.chance,
            "shared": np.bincount(self.shared, minlength=NEIGHBOURS + 1).tolist(),
            "correlation": self.correlation,
            "pairs": self.pairs,
            "seed": neighbours.SEED if self.sampled else None,
            "sides": {name: _told(side) for name, side in zip(NAMES, self.sides, strict=True)},
            "moved": [
                {
                    **self._named(place),
                    "shared": int(self.shared[place]),
                    "neighbours": {
                        name: [self._named(other) for other in side.neighbours[place].tolist()]
                        for name, side in zip(NAMES, self.sides, strict=True)
                    },
                }
                for place in moved(self.shared)
            ],
        }

    def _named(self, place: int) -> dict[str, Any]:
        return {"number": int(self.lines[place]) + 1, "text": self.texts[place]}


def _told(side: Side) -> dict[str, Any]:
    tokens, truncated, *seconds = side.cost
    told = {"url": side.url, **{name: side.facts[name] for name in FACTS[:4]}}
    told |= {"dimensions": side.dimensions, "tokens": round(tokens), "truncated": round(truncated)}
    return told | dict(zip(("model_seconds", "seconds"), seconds, strict=True))


def moved(shared: NDArray[np.int64]) -> list[int]:
    """List the places of the texts that keep the fewest neighbours, equal ones in order."""
    order = np.argsort(shared, kind="stable")[:MOVED]
    return [int(place) for place in order if shared[place] < NEIGHBOURS]


@contextmanager
def compared(services: Sequence[Asked], file: File, truncate: Truncate) -> Iterator[Comparison]:
    """Yield the comparison of two services; its files are removed after the block.

    Raises:
        Unusable, Failed, OSError: why not, in a line.
    """
    folder = cache.folder()
    folder.mkdir(parents=True, exist_ok=True)
    with file.lasting(folder) as kept, ExitStack() as stack:
        infos = [_info(service) for service in services]
        sources = [check(kept, info) for info in infos]
        lines = distinct(sources[0])
        files = []
        for name, service, info, source in zip(NAMES, services, infos, sources, strict=True):
            vectors = _file(name, service.url, info, source, folder, truncate)
            files.append(stack.enter_context(closing(vectors)))
        for name, service, info, source, vectors in zip(
            NAMES, services, infos, sources, files, strict=True
        ):
            _encode(name, service, info["space"], source, vectors, truncate)
        yield _compare(services, infos, sources[0], lines, files)
        for vectors in files:
            vectors.partial.unlink()


def distinct(source: Source) -> Places:
    """Return the lines with a text that none before them has: a copy would be its neighbour.

    Raises:
        Unusable: there are too few for neighbours, or too many; or pairs of texts.
    """
    name, seen, lines = source.file.name, set[bytes](), list[int]()
    if source.lines > MOST_TEXTS:
        why = f"{source.lines} texts; a comparison takes at most {MOST_TEXTS}, such as a sample"
        raise Unusable(f"{name}: {why}")
    for line, text in enumerate(source.texts(0)):
        if not isinstance(text, str):
            raise Unusable(f"{name} holds pairs of texts, which have no neighbours of their own")
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGITS).digest()
        if digest not in seen:
            seen.add(digest)
            lines.append(line)
    if len(lines) <= NEIGHBOURS:
        least = NEIGHBOURS + 1
        why = f"{NEIGHBOURS} neighbours of a text need at least {least} different texts"
        raise Unusable(f"{name}: {len(lines)} different texts; {why}")
    return np.array(lines, np.intp)


def _info(service: Asked) -> dict[str, Any]:
    with connected(service.url, service.key, PATIENCE_SECONDS) as (_, info):
        if not info.keys() >= {*FACTS}:
            raise Failed(f"{service.url} does not say what space its vectors are of")
        return info


def _file(
    name: str,
    url: str,
    info: Mapping[str, Any],
    source: Source,
    folder: Path,
    truncate: Truncate,
) -> Vectors:
    """Open a side's file: that of an earlier run on the same texts, or a new one.

    Raises:
        Unusable: the service's vectors were of another space then.
    """
    asked = [name, url.rstrip("/"), source.origin]
    digest = hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()
    made = {**origin_of(info), "space": info["space"], **source.origin}
    made |= {"truncate": truncate, "max_tokens": str(info["max_tokens"])}
    out = folder / f"compare-{digest[:DIGITS]}.safetensors"
    return Vectors(out, source.lines, made, REMEDY)


def _encode(
    name: str, service: Asked, space: str, source: Source, vectors: Vectors, truncate: Truncate
) -> None:
    """Write the rows that an earlier run has not; of another space the service refuses them."""
    rows, unit = partial(_rows, _watch()), f"texts of {name.upper()}"
    try:
        with connected(service.url, service.key, PATIENCE_SECONDS, space) as (client, _):
            collect(client, source, vectors, rows, unit, truncate=truncate)
    except Failed as error:
        raise Failed(f"{service.url}: {error}") from error


def _watch() -> Callable[[], float]:
    """Return what tells the seconds since it told them last."""
    since = time.monotonic()

    def lap() -> float:
        nonlocal since
        before, since = since, time.monotonic()
        return since - before

    return lap


def _rows(lap: Callable[[], float], part: Encoded) -> Array:
    """Return an answer's vectors, each with a cost behind it: the first the request's, then 0."""
    if part.pooled is None:
        raise RuntimeError("an answer without pooled vectors: this is a bug")
    usage, costs = part.usage, np.zeros((len(part.pooled), len(Cost._fields)), DTYPE)
    costs[0] = Cost(usage.tokens, usage.truncated, usage.compute_ms / 1000, lap())
    return np.hstack([part.pooled, costs])


def _compare(
    services: Sequence[Asked],
    infos: Sequence[Mapping[str, Any]],
    source: Source,
    lines: Places,
    files: Sequence[Vectors],
) -> Comparison:
    pairs, sides = neighbours.pairs(len(lines)), []
    for name, service, info, vectors in zip(NAMES, services, infos, files, strict=True):
        array = vectors.read()
        rows = Rows(array[:, : -len(Cost._fields)], lines)
        cost = array[:, -len(Cost._fields) :].sum(axis=0, dtype=np.float64)
        with bar(f"neighbours of {name.upper()}") as told:
            nearest = neighbours.nearest(rows, NEIGHBOURS, told)
        alike = neighbours.likenesses(rows, *pairs)
        facts = {fact: info[fact] for fact in FACTS}
        width = rows.array.shape[1]
        sides.append(Side(service.url, facts, width, Cost(*cost.tolist()), nearest, alike))
    shared = neighbours.shared(*(side.neighbours for side in sides))
    correlation = neighbours.spearman(*(side.likenesses for side in sides))
    shown = set(moved(shared))
    shown |= {int(one) for place in [*shown] for side in sides for one in side.neighbours[place]}
    places = {int(lines[place]): place for place in shown}
    texts = {
        places[line]: text
        for line, text in enumerate(source.texts(0))
        if line in places and isinstance(text, str)
    }
    return Comparison(lines, source.lines - len(lines), sides, shared, correlation, texts)
