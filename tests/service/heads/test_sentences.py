"""The bundled corpus is what it claims to be, and a user's is read line by line."""

import json
import re
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from service.heads import sentences
from service.heads.sentences import BadCorpus, Corpus, CorpusLine, Sentence

RELATIONS = ["coreference", "negation", "preposition", "agreement", "object"]
GOOD = {"relation": "subject", "text": "Cats sleep.", "from": [5, 10], "to": [0, 4]}


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """The bundled corpus."""
    return sentences.read_bundled()


def of(corpus: Corpus, relation: str) -> list[Sentence]:
    """The sentences of one relation."""
    return [sentence for sentence in corpus.sentences if sentence.relation == relation]


def test_every_text_is_there_once(corpus: Corpus) -> None:
    """In the relations that the source texts name."""
    texts = [sentence.text for sentence in corpus.sentences]

    assert len(set(texts)) == len(texts) == 420
    assert corpus.relations == RELATIONS


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_relation_has_enough_sentences_and_controls(corpus: Corpus, relation: str) -> None:
    """At least 50 sentences, 20 of them controls, and sentences to choose by."""
    found = of(corpus, relation)
    controls = [sentence for sentence in found if sentence.control]

    assert len(found) >= 50 and len(controls) >= 20
    assert relation == "coreference" or len(found) - len(controls) >= 20


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("control", [False, True], ids=["items", "controls"])
def test_no_fixed_offset_is_right_in_half_the_sentences(
    corpus: Corpus, relation: str, control: bool
) -> None:
    """So a head that only looks so many words back or ahead cannot pass."""
    found = [s.target - s.source for s in of(corpus, relation) if s.control == control]

    assert not found or max(Counter(found).values()) < len(found) / 2


def test_the_antecedent_is_swapped_in_every_pair(corpus: Corpus) -> None:
    """One word differs, behind the pronoun; once the subject is meant, once what follows it."""
    for _, group in groupby(of(corpus, "coreference"), key=lambda sentence: sentence.group):
        subject, other = group
        words = subject.text.split(), other.text.split()

        assert sum(a != b for a, b in zip(*words, strict=True)) == 1
        assert subject.words[: subject.source + 1] == other.words[: other.source + 1]
        assert subject.target < other.target < subject.source == other.source


@pytest.mark.parametrize(
    ("relation", "answers"),
    [
        ("coreference", {"it", "she", "he", "they"}),
        ("negation", {"not", "never"}),
        ("preposition", {"on", "in", "through", "under", "with"}),
    ],
)
def test_the_word_asked_about_is_of_the_relations_kind(
    corpus: Corpus, relation: str, answers: set[str]
) -> None:
    """A pronoun, a negation, a preposition."""
    asked = Counter(s.text[slice(*s.words[s.source])].lower() for s in of(corpus, relation))

    contracted = {word for word in asked if word.endswith("n't")}
    assert answers <= asked.keys()
    assert relation == "preposition" or asked.keys() - contracted == answers


def test_agreement_controls_swap_the_number_of_subject_and_attractor(corpus: Corpus) -> None:
    """The key to the cabinets is, the keys to the cabinet are: only the number tells which."""
    controls = [sentence for sentence in of(corpus, "agreement") if sentence.control]

    for _, group in groupby(controls, key=lambda sentence: sentence.group):
        one, many = group
        subject, subjects = (s.text[slice(*s.words[s.target])] for s in (one, many))

        assert (one.source, one.target) == (many.source, many.target)
        assert subjects.removeprefix(subject) in ("s", "es")


def written(folder: Path, *lines: Any) -> Path:
    """A corpus file."""
    path = folder / "mine.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_a_users_corpus_is_read_by_the_same_rules(tmp_path: Path) -> None:
    """Empty lines count but say nothing; who belongs to no group stands alone."""
    path = written(tmp_path, GOOD, {**GOOD, "text": "Dogs sleep.", "control": True, "group": "g"})
    path.write_text("\n" + path.read_text() + "\n")

    corpus = sentences.read_corpus(path)

    first, second = corpus.sentences
    assert corpus.describe()["name"] == "mine.jsonl" and corpus.describe()["sentences"] == 2
    assert (first.line, first.source, first.target, first.control) == (2, 1, 0, False)
    assert (first.group, second.group, second.control) == ("line 2", "g", True)


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("x", "must be an object"),
    "a field too many": ({**GOOD, "form": 1}, ": form is an unknown field"),
    "a field too few": ({"relation": "subject"}, ": text is missing"),
    "half a word": ({**GOOD, "to": [0, 3]}, "'Cat' at [0, 3] is not a word of the text"),
    "beyond the text": ({**GOOD, "to": [50, 54]}, "is not a word of the text"),
    "the same word": ({**GOOD, "to": [5, 10]}, "from and to are the same word"),
    "a role's name": (
        {**GOOD, "relation": "previous"},
        "'previous' is the name of a role by position",
    ),
    "no name": ({**GOOD, "relation": "L5H11"}, ": relation must match"),
}


@pytest.mark.parametrize(("line", "said"), BAD.values(), ids=BAD.keys())
def test_a_broken_line_is_refused_with_its_number(tmp_path: Path, line: Any, said: str) -> None:
    """And with what is wrong in it."""
    with pytest.raises(BadCorpus) as refused:
        sentences.read_corpus(written(tmp_path, GOOD, line))

    assert str(refused.value).startswith("mine.jsonl line 2")
    assert said in str(refused.value)


def test_a_corpus_without_a_sentence_is_refused(tmp_path: Path) -> None:
    """There would be nothing to measure."""
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")

    with pytest.raises(BadCorpus, match=r"empty\.jsonl holds no sentence"):
        sentences.read_corpus(path)


PAGE = Path(__file__).parents[3] / "docs" / "heads.md"


def test_the_corpus_of_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script writes three sentences to choose by, and three to judge by."""
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)

    exec(compile(script, PAGE.name, "exec"), {})

    corpus = sentences.read_corpus(tmp_path / "subjects.jsonl")
    assert corpus.relations == ["subject"]
    assert [sentence.control for sentence in corpus.sentences] == [False] * 3 + [True] * 3


def test_the_guide_names_every_field_of_a_line() -> None:
    """By the name that the file has."""
    table = re.findall(r"^\| `(\w+)` \| ", PAGE.read_text("utf-8"), re.MULTILINE)

    assert table == [field.alias or name for name, field in CorpusLine.model_fields.items()]
