"""Many vectors, from PyLate's files and Stanford's, against PyLate's formulas over transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from torch import Tensor

from model.config import Side
from model.errors import CheckpointError
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import VectorHead, match_vectors
from tests.late_interaction import DOCUMENT, POSITIONS, QUERY, SIZES, Late, pylate, stanford
from tests.model.loads import load

CLOSE = 1e-5
TEXTS = (
    "Why?",
    "All is well.",
    "The dog, which was hungry, ate: the food! And then it slept until the evening came (again).",
    "a",
    "[Q] and [D] are markers; [unused0] is not a word, [MASK] is.",
    "No vocabulary has \U0001f9ad.",  # as [UNK]
)
MADE: dict[str, Callable[[Path], Late]] = {
    "pylate": pylate,
    "pylate, attended": lambda folder: pylate(folder, attend_to_expansion_tokens=True),
    "pylate, not expanded": lambda folder: pylate(folder, do_query_expansion=False),
    "pylate, residual": lambda folder: pylate(folder, residual=True),
    "pylate, own skiplist": lambda folder: pylate(folder, skiplist_words=["dog", "qxz"]),
    "stanford": stanford,
    "stanford, attended": lambda folder: stanford(folder, attend_to_mask_tokens=True),
    "stanford, punctuation": lambda folder: stanford(folder, mask_punctuation=False),
}


def framed(model: Model, text: str, side: Side) -> Sequence:
    """A text as the model reads it on one side."""
    assert isinstance(model.task_heads[0], VectorHead)
    role = model.task_heads[0].roles[side]
    (one,) = model.tokenizer([(text,)], role.length - role.marker_tokens, "right")
    whole = role.frame_text(one)
    return Sequence(whole.token_ids, whole.types, unseen=role.count_unseen(one))


@torch.inference_mode()
def ours(model: Model, batch: list[tuple[str, Side]]) -> list[tuple[Tensor, list[int]]]:
    """The vectors and the tokens kept of each text of a batch."""
    assert isinstance(model.task_heads[0], VectorHead)
    sequences = [framed(model, text, side) for text, side in batch]
    encoded = model.encoder(model.encoder.pack(sequences))
    made = []
    for index, (sequence, (_, side)) in enumerate(zip(sequences, batch, strict=True)):
        kept = model.task_heads[0].roles[side].kept_places(list(sequence.token_ids or ()))
        head = VectorHead(model.task_heads[0].project, model.task_heads[0].roles, kept)
        found = head(encoded.last[encoded.packed.rows(index)])
        made.append((found["vectors"], found["kept"].tolist()))
    return made


@pytest.mark.parametrize("name", MADE)
def test_vectors_are_those_of_pylates_formulas(name: str, tmp_path: Path) -> None:
    """On either side, cut and uncut, with the tokens kept; unknown words skip [UNK] as there."""
    theirs, model = MADE[name](tmp_path), load(tmp_path)
    sides: tuple[Side, ...] = ("query", "document")
    batch = [(text, side) for text in TEXTS for side in sides]

    for (text, side), (vectors, kept) in zip(batch, ours(model, batch), strict=True):
        expected, places = theirs.encode(text, side)
        assert kept == places
        assert vectors.shape == (len(kept), SIZES[1])
        torch.testing.assert_close(vectors, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", ["pylate", "stanford"])
def test_sentence_transformers_reads_the_same_files_alike(name: str, tmp_path: Path) -> None:
    """Its MultiVectorEncoder is another's reading of what PyLate and Stanford save."""
    MADE[name](tmp_path)
    theirs = MultiVectorEncoder(str(tmp_path), device="cpu", local_files_only=True)
    model, text = load(tmp_path), TEXTS[2]

    ((query, _), (document, _)) = ours(model, [(text, "query"), (text, "document")])

    expected = theirs.encode_query(text)
    torch.testing.assert_close(query, expected, atol=CLOSE, rtol=0)
    expected = theirs.encode_document(text)
    torch.testing.assert_close(document, expected, atol=CLOSE, rtol=0)


def test_a_batch_changes_no_bit_of_many_vectors(tmp_path: Path) -> None:
    """A query whose filling is unseen, with documents of its own length and others."""
    model = (pylate(tmp_path), load(tmp_path))[1]
    document = "one two three four five six seven eight nine ten"  # with its frame as long as QUERY
    assert len(framed(model, document, "document")) == QUERY
    batch: list[tuple[str, Side]] = [(text, "query") for text in TEXTS]
    batch += [(document, "document"), *((text, "document") for text in TEXTS)]

    together = ours(model, batch)

    for one, (vectors, kept) in zip(batch, together, strict=True):
        ((alone, places),) = ours(model, [one])
        assert torch.equal(alone, vectors) and places == kept


def test_the_longest_sequence_is_that_of_either_side(tmp_path: Path) -> None:
    """Whatever length PyLate last left in its Transformer's file; a table bounds documents."""
    pylate(tmp_path, document_length=POSITIONS + 5)
    model = load(tmp_path)

    assert isinstance(model.task_heads[0], VectorHead)
    assert model.max_tokens == model.task_heads[0].roles["document"].length == POSITIONS
    assert model.tasks == ("encode", "multi_vector")


def test_all_choices_are_in_the_digest(tmp_path: Path) -> None:
    """Two checkpoints that differ in one of them have two names."""
    changes = ({}, {"attend_to_expansion_tokens": True}, {"document_length": 17})
    folders = [tmp_path / str(place) for place in range(len(changes))]

    digests = {
        (pylate(folder, **change), load(folder).digest)[1]
        for folder, change in zip(folders, changes, strict=True)
    }

    assert len(digests) == len(changes)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a marker": ({"query_prefix": "[X] "}, "the tokenizer lacks the marker"),
    "no text": ({"document_prefix": 3}, "expected texts as markers"),
    "no switch": ({"do_query_expansion": "yes"}, "and switches"),
    "no words": ({"skiplist_words": "abc"}, "expected texts as markers"),
    "too short": ({"query_length": 3}, "expected 4 or more tokens"),
    "too long": ({"query_length": POSITIONS + 1}, f"the model takes {POSITIONS}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_choices_that_cannot_be_kept_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """In one line, at the start."""
    change, words = REFUSED[name]
    pylate(tmp_path, **change)

    with pytest.raises(CheckpointError, match="config_sentence_transformers.json") as refusal:
        load(tmp_path)

    assert words in str(refusal.value) and "\n" not in str(refusal.value)


BROKEN: dict[str, tuple[str, Any, str]] = {
    "choices": ("config_sentence_transformers.json", [3], "is not a JSON object"),
    "a tokenizer": ("tokenizer_config.json", [3], "is not a JSON object"),
    "a layer": ("1_Dense/config.json", [3], "is not a JSON object"),
    "a module": ("modules.json", [{"type": 3, "path": ""}], "an entry without type and path"),
    "an activation": ("1_Dense/config.json", {"activation_function": [3]}, "not supported"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_of_another_shape_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """In a sentence, and never by a traceback."""
    file, content, words = BROKEN[name]
    pylate(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match=words):
        load(tmp_path)


def test_dense_layers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """NaN, a wrong size, no size, a missing linear, and scores that are not the sum of cosines."""
    pylate(tmp_path / "pylate")
    path = tmp_path / "pylate" / "1_Dense" / "model.safetensors"
    tensors = load_file(path)
    for wrong, words in (
        (tensors["linear.weight"] * torch.nan, "NaN or infinity"),
        (tensors["linear.weight"][:, 1:].contiguous(), "linear.weight is"),
        (tensors["linear.weight"][:0], "linear.weight is"),
    ):
        save_file(tensors | {"linear.weight": wrong}, path)
        with pytest.raises(CheckpointError, match=words):
            load(tmp_path / "pylate")
    stanford(tmp_path / "stanford", similarity="l2")
    with pytest.raises(CheckpointError, match="similarity 'l2'"):
        load(tmp_path / "stanford")
    weights = tmp_path / "stanford" / "model.safetensors"
    (tmp_path / "stanford" / "artifact.metadata").write_text(json.dumps({"doc_maxlen": DOCUMENT}))
    save_file({n: t for n, t in load_file(weights).items() if n != "linear.weight"}, weights)
    with pytest.raises(CheckpointError, match="missing linear.weight"):
        load(tmp_path / "stanford")


def test_a_score_is_the_sum_of_the_largest_products() -> None:
    """By hand; of equal products the first vector is named."""
    query = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    document = torch.tensor([[0.5, 1.0], [3.0, 1.0], [3.0, -4.0]])

    found = match_vectors(query, document)

    assert (found.score, found.places.tolist(), found.values.tolist()) == (5.0, [1, 0], [3.0, 2.0])
