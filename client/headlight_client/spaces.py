"""Check that a service's vectors stay comparable, by canary texts computed now and later.

A saved space is a JSON file: the space's name and parts as GET /info has them, 32 texts, and their
vectors as base64 of little-endian float32.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from headlight_client.formats import Array, read_json, write_json
from headlight_client.reprs import with_short_repr

FORMAT = 1  # version of the file
DTYPE = np.dtype("<f4")  # of the vectors in the file
# fields of GET /info that a saved space keeps
SPACE_FACTS = ("model", "weights", "numerics", "space", "space_parts", "space_bound")
# of few and of many words, of names, numbers and other scripts, so that a tokenizer shows
CANARY_TEXTS = (
    "All is well.",
    "The cat sat on the mat.",
    "A dog ate the food because it was hungry.",
    "How do I reset my password?",
    "Invoice 2026-0417 is due within 30 days.",
    "Water boils at 100 degrees Celsius at sea level.",
    "The court dismissed the appeal on procedural grounds.",
    "Take two tablets a day, after meals.",
    "def add(a, b): return a + b",
    "SELECT name FROM users WHERE id = 7;",
    "Paris is the capital of France.",
    "London, Berlin and Madrid are capitals too.",
    "The quick brown fox jumps over the lazy dog.",
    "No, the meeting was not cancelled.",
    "Yes, the meeting was cancelled.",
    "She said that he had said that she would come.",
    "Photosynthesis turns light into chemical energy.",
    "Shares fell by 3.2% after the announcement.",
    "Please find the attached report.",
    "It was the best of times, it was the worst of times.",
    "To be, or not to be, that is the question.",
    "THE SAME WORDS IN CAPITALS",
    "the same words in capitals",
    "naïve café, coöperation, Ångström",
    "Der Hund schläft unter dem Tisch.",
    "El tren sale a las ocho y media.",
    "Быстрая лиса прыгает через собаку.",
    "今日は天気がいいですね。",
    "مرحبا بالعالم",
    "e-mail: someone@example.com, tel. +1 555 0100",
    "supercalifragilisticexpialidocious",
    "?!",
)


@with_short_repr
@dataclass(frozen=True, slots=True)
class Space:
    """The space of a service's vectors; those of one space may stand in one index.

    Args:
        facts: of GET /info: model, weights, numerics, space, space_parts and space_bound.
        texts: the canaries.
        vectors: of the canaries, (texts, size) float32.
    """

    facts: Mapping[str, Any]
    texts: Sequence[str]
    vectors: Array

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a saved space.

        Raises:
            ValueError: the file holds no saved space.
            OSError: it cannot be read.
        """
        try:
            saved = read_json(path.read_bytes())
            if saved["headlight_space"] != FORMAT:
                raise ValueError("of another format")
            facts, texts = {name: saved[name] for name in SPACE_FACTS}, list(saved["texts"])
            data = base64.b64decode(saved["vectors"]["data"], validate=True)
            vectors = np.frombuffer(data, DTYPE).reshape(saved["vectors"]["shape"])
            if len(vectors) != len(texts) or vectors.ndim != 2 or not texts:
                raise ValueError("a vector for each text is missing")
            return cls(facts, texts, vectors)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a saved space") from error

    def write(self, path: Path) -> None:
        """Save the space as JSON.

        Raises:
            OSError: the file cannot be written.
        """
        vectors = np.ascontiguousarray(self.vectors, DTYPE)
        data = base64.b64encode(vectors.data).decode()
        kept = {"shape": vectors.shape, "dtype": "float32", "data": data}
        saved = {"headlight_space": FORMAT, **self.facts, "texts": self.texts, "vectors": kept}
        path.write_bytes(write_json(saved) + b"\n")


@with_short_repr
@dataclass(frozen=True, slots=True)
class Checked:
    """How canary vectors computed now compare with saved ones.

    Args:
        texts: the canaries.
        distances: how far each vector moved, relative to its length, (texts,); infinity where its
            size changed.
        bound: the largest distance within one space.
        bits: whether all vectors are equal to the bit.
        changed: the parts of the space that differ, by name: the saved value and that of now.
    """

    texts: Sequence[str]
    distances: Array
    bound: float
    bits: bool
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def verdict(self) -> Literal["same bits", "same space", "changed", "moved"]:
        """Return the result: "moved": a vector is beyond the bound, "changed": a part differs."""
        if self.moved:
            return "moved"
        return "changed" if self.changed else "same bits" if self.bits else "same space"

    @property
    def same(self) -> bool:
        """Tell whether the vectors may still stand in one index."""
        return self.verdict.startswith("same")

    @property
    def moved(self) -> list[tuple[str, float]]:
        """List the texts that moved beyond the bound, furthest first, each with its distance."""
        pairs = zip(self.texts, map(float, self.distances), strict=True)
        beyond = [(text, distance) for text, distance in pairs if not distance <= self.bound]
        return sorted(beyond, key=lambda pair: -pair[1])


def compare_vectors(
    texts: Sequence[str],
    expected: Array,
    found: Array,
    bound: float,
    changed: Mapping[str, tuple[Any, Any]] | None = None,
) -> Checked:
    """Compare the saved and the computed vectors of texts, (texts, size) each; see Checked."""
    bits = (
        expected.shape == found.shape
        and expected.astype(DTYPE).tobytes() == found.astype(DTYPE).tobytes()
    )
    if expected.shape != found.shape:
        distances: Array = np.full(len(texts), np.inf)
    else:
        before, now = expected.astype(np.float64), found.astype(np.float64)
        lengths = np.linalg.norm(before, axis=1).clip(min=np.finfo(np.float32).tiny)
        apart = np.linalg.norm(now - before, axis=1) / lengths
        distances = np.where(np.isfinite(apart), apart, np.inf)
    return Checked(texts, distances, bound, bits, changed or {})


def find_differences(
    saved: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the entries that differ between two space_parts of GET /info: (saved, now) by name."""
    names = [*saved, *(name for name in now if name not in saved)]
    return {
        name: (saved.get(name), now.get(name)) for name in names if saved.get(name) != now.get(name)
    }
