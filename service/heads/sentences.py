"""A corpus file -> the sentences that heads are measured on.

One JSON object per line:

    relation    what links the two words, such as "coreference"
    text        a sentence
    from, to    the word asked about and the right answer, characters, [start, end)
    control     whether a head is judged by this sentence rather than chosen by it
    group       the same for sentences that differ in one thing; default: one of its own
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from model.heads import relations, roles
from service.tables.wording.values import word_value_error
from service.tables.wording.words import write_place

BUNDLED_CORPUS = "relations.jsonl"  # a file of this package
EVEN_TEXTS = 8  # of the bundled corpus, by which a start checks that a model tells texts apart

Span = tuple[int, int]  # [start, end) in characters


class BadCorpus(Exception):
    """A corpus file that cannot be read; the message names file and line."""


class CorpusLine(BaseModel):
    """One line of a corpus file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    relation: str = Field(pattern=r"^[a-z][a-z -]{0,39}$")
    text: str = Field(min_length=1)
    source: list[int] = Field(alias="from", min_length=2, max_length=2)
    target: list[int] = Field(alias="to", min_length=2, max_length=2)
    control: bool = False  # whether heads are judged by this sentence, and not chosen by it
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """One text and the two of its words that a relation links.

    Args:
        line: its line in the file, from 1.
        words: spans of all its words.
        source, target: indices of the word asked about and of the right answer.
        control, group: as in the file.
    """

    line: int
    relation: str
    text: str
    words: tuple[Span, ...]
    source: int
    target: int
    control: bool
    group: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sentences and their origin: the name of their file and its shortened SHA-256."""

    name: str
    digest: str
    sentences: tuple[Sentence, ...]

    @property
    def relations(self) -> list[str]:
        """Return the names of the relations, in the order of their first sentences."""
        return list(dict.fromkeys(sentence.relation for sentence in self.sentences))

    def describe(self) -> dict[str, str | int]:
        """Return the corpus as the answer of GET /v1/heads describes it."""
        return {"name": self.name, "digest": self.digest, "sentences": len(self.sentences)}


@cache
def read_bundled() -> Corpus:
    """Return the corpus that comes with this package."""
    content = files("service.heads").joinpath(BUNDLED_CORPUS).read_bytes()
    return _parse_corpus(BUNDLED_CORPUS, content)


def pick_evenly() -> list[str]:
    """Return EVEN_TEXTS texts of the bundled corpus, evenly spaced from beginning to end."""
    texts = [sentence.text for sentence in read_bundled().sentences]
    return texts[:: len(texts) // EVEN_TEXTS][:EVEN_TEXTS]


def read_corpus(path: Path) -> Corpus:
    """Read a user's corpus.

    Raises:
        BadCorpus: a line is wrong, or there is none.
        OSError: the file cannot be read.
    """
    return _parse_corpus(path.name, path.read_bytes())


def _parse_corpus(name: str, content: bytes) -> Corpus:
    """Return the corpus of a file's content; raises BadCorpus."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()[:12]}"
    sentences = tuple(_parse_sentences(name, content))
    if not sentences:
        raise BadCorpus(f"{name} holds no sentence")
    return Corpus(name, digest, sentences)


def _parse_sentences(name: str, content: bytes) -> Iterator[Sentence]:
    """Yield the sentence of each line of a file's content; raises BadCorpus."""
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield _make_sentence(number, CorpusLine.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            field = f": {write_place(first['loc'])}" if first["loc"] else ""
            fault = word_value_error(first)
            raise BadCorpus(f"{name} line {number}{field} {fault}") from error
        except ValueError as error:
            raise BadCorpus(f"{name} line {number}: {error}") from error


def _make_sentence(number: int, line: CorpusLine) -> Sentence:
    """Return a line as a sentence, its spans looked up among the words of its text."""
    if line.relation in roles.THRESHOLDS:
        raise ValueError(f"relation: {line.relation!r} is the name of a role by position")
    words = relations.word_spans(line.text)
    source, target = (_find_word(words, span, line.text) for span in (line.source, line.target))
    if source == target:
        raise ValueError("from and to are the same word")
    group = line.group or f"line {number}"
    return Sentence(
        number, line.relation, line.text, tuple(words), source, target, line.control, group
    )


def _find_word(words: list[Span], span: list[int], text: str) -> int:
    """Return the index of the word that a span of the text is."""
    start, end = span
    if (start, end) not in words:
        raise ValueError(
            f"{text[max(start, 0) : max(end, 0)]!r} at {span} is not a word of the text"
        )
    return words.index((start, end))
