"""A folder of sentence-transformers' MultiVectorEncoder answers as that library does."""

import shutil
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import Tensor, nn

from model.config import Side
from model.errors import CheckpointError
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import VectorHead
from tests.model.loading.pipeline.conftest import POSITIONS, TEXTS, WIDTH, change
from tests.model.loads import load

SIZE = 7
FIXED = {"strategy": "fixed", "length": 13}
PROMPTS = {"query": "[Q] ", "document": "passage: "}
MASKED = {"skiplist_words": list(string.punctuation)}
MORE = (*TEXTS, "one two three four five six seven eight nine ten, eleven and twelve.")

Save = Callable[..., tuple[MultiVectorEncoder, Path]]


@pytest.fixture(scope="module")
def made(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Save a model, of the same choices once; gives theirs as it loads again, and the folder."""
    known: dict[str, tuple[MultiVectorEncoder, Path]] = {}

    def make(
        prompts: dict[str, str] | None = None,
        mask: dict[str, Any] | None = MASKED,
        dense: tuple[int, ...] = (SIZE,),
        **lengths: Any,
    ) -> tuple[MultiVectorEncoder, Path]:
        if (name := repr((prompts, mask, dense, lengths))) not in known:
            torch.manual_seed(3)
            sizes = zip((WIDTH, *dense), dense, strict=False)
            parts: list[nn.Module] = [Transformer(str(bert), **lengths)]
            parts += [Dense(*size, module_input_name="token_embeddings") for size in sizes]
            parts += [] if mask is None else [MultiVectorMask(**mask)]
            parts += [Normalize("token_embeddings")]
            peer = MultiVectorEncoder(modules=parts, prompts=prompts, device="cpu")
            folder = tmp_path_factory.mktemp("made")
            peer.save_pretrained(str(folder), create_model_card=False)
            known[name] = MultiVectorEncoder(str(folder), device="cpu"), folder
        return known[name]

    return make


@pytest.fixture
def save(made: Save, tmp_path: Path) -> Save:
    """Save a model; gives theirs, and a folder of it to change."""

    def save(**choices: Any) -> tuple[MultiVectorEncoder, Path]:
        peer, folder = made(**choices)
        return peer, Path(shutil.copytree(folder, tmp_path / "late"))

    return save


@torch.inference_mode()
def ours(model: Model, text: str, side: Side) -> Tensor:
    """The vectors of a text, cut as the library cuts it."""
    assert isinstance(model.task_heads[0], VectorHead)
    role = model.task_heads[0].roles[side]
    (one,) = model.tokenizer([(text,)], role.length, "right", role.prompt or "")
    whole = role.frame_text(one)
    sequence = Sequence(whole.token_ids, whole.types, unseen=role.count_unseen(one))
    head = replace(model.task_heads[0], kept=role.kept_places(whole.token_ids))
    return head(model.encoder(model.encoder.pack([sequence])).last)["vectors"]


def alike(peer: MultiVectorEncoder, folder: Path) -> None:
    """Hold all texts on either side to theirs."""
    model = load(folder)
    for text in MORE:
        for side, encode in (("query", peer.encode_query), ("document", peer.encode_document)):
            expected = encode(text)
            found = ours(model, text, "query" if side == "query" else "document")
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


SHAPES: dict[str, dict[str, Any]] = {
    "no expansion": {},
    "fixed": {"query_expansion": FIXED, "document_length": 11},
    "fixed, attended": {"query_expansion": {**FIXED, "attend": True}},
    "min": {"query_expansion": {**FIXED, "strategy": "min"}, "query_length": 17},
    "min, of any length": {"query_expansion": {**FIXED, "strategy": "min"}},
    "another filling": {"query_expansion": {**FIXED, "token": "[unused3]"}},
    "lengths": {"query_length": 5, "document_length": 9},
    "prompts": {"prompts": PROMPTS, "query_expansion": FIXED},
    "queries skip too": {"mask": {**MASKED, "skiplist_tasks": ["query", "document"]}},
    "words that the vocabulary lacks": {"mask": {"skiplist_words": ["qxz", "dog", "."]}},
    "no mask": {"mask": None},
    "two layers": {"dense": (11, SIZE)},
}


@pytest.mark.parametrize(
    "choices",
    [  # each second one; `make prove` tries the others
        pytest.param(choices, id=name, marks=pytest.mark.prove if place % 2 else ())
        for place, (name, choices) in enumerate(SHAPES.items())
    ],
)
def test_vectors_are_sentence_transformers(save: Save, choices: dict[str, Any]) -> None:
    """On either side, cut and uncut, with the tokens that are kept."""
    alike(*save(**choices))


def test_a_side_takes_no_other_prompt_by_default(save: Save) -> None:
    """Neither the default one nor, of documents, one of another name."""
    _, folder = save()
    stored = {"passage": "passage: ", "q": "q "}
    change(folder / "config_sentence_transformers.json", prompts=stored, default_prompt_name="q")

    alike(MultiVectorEncoder(str(folder), device="cpu"), folder)


def test_all_choices_are_in_the_digest(save: Save) -> None:
    """Two folders that differ in one of them have two names."""
    _, folder = save(query_expansion=FIXED)
    changes: list[tuple[str, dict[str, Any]]] = [
        ("sentence_bert_config.json", {"query_expansion": {**FIXED, "attend": True}}),
        ("sentence_bert_config.json", {"query_expansion": {**FIXED, "strategy": "min"}}),
        ("sentence_bert_config.json", {"query_expansion": None}),
        ("sentence_bert_config.json", {"document_length": 9}),
        ("2_MultiVectorMask/config.json", {"skiplist_words": ["."]}),
        ("config_sentence_transformers.json", {"prompts": PROMPTS}),
    ]
    digests = {load(folder).digest}

    for file, values in changes:
        change(folder / file, **values)
        digests.add(load(folder).digest)

    assert len(digests) == 1 + len(changes)


def test_the_longest_sequence_is_that_of_either_side(save: Save) -> None:
    """Documents as long as the model takes, where no length is said."""
    _, folder = save(query_expansion=FIXED)
    model = load(folder)

    assert isinstance(model.task_heads[0], VectorHead)
    assert model.max_tokens == model.task_heads[0].roles["document"].length == POSITIONS
    assert (
        model.task_heads[0].roles["query"].length
        == model.task_heads[0].roles["query"].filled_length
        == 13
    )
    assert model.tasks == ("encode", "multi_vector")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (PLACE := "2_MultiVectorMask/config.json", {"keep_only_token_ids": [5]}, "keep_only_token_ids"),
    (PLACE, {"skiplist_words": [5]}, "expected texts as skiplist_words"),
    (PLACE, {"temperature": 1}, "unknown key 'temperature'"),
    ("3_Normalize/config.json", {"module_input_name": "sentence_embedding"}, "3_Normalize"),
    ("1_Dense/config.json", {"module_input_name": "sentence_embedding"}, "1_Dense: not supported"),
    (
        FILE := "sentence_bert_config.json",
        {"query_expansion": {**FIXED, "strategy": "max"}},
        "query_expansion {'strategy': 'max'",
    ),
    (FILE, {"query_expansion": {**FIXED, "token": "qxz"}}, "the tokenizer lacks 'qxz'"),
    (FILE, {"query_expansion": {**FIXED, "length": 99}}, "queries of 99 tokens"),
    (FILE, {"query_expansion": {**FIXED, "spread": 2}}, "not supported: query_expansion"),
    (FILE, {"query_expansion": FIXED, "query_length": 5}, "query_length is less than 13"),
    (FILE, {"document_length": 0}, "document_length, received 0"),
    (
        "config_sentence_transformers.json",
        {"similarity_fn_name": "meanmaxsim"},
        "similarity_fn_name 'meanmaxsim'",
    ),
    ("config_sentence_transformers.json", {"query_prefix": "[Q]"}, "query_prefix"),
]


@pytest.mark.parametrize(("file", "values", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_not_computed_is_refused_by_name(
    save: Save, file: str, values: dict[str, Any], said: str
) -> None:
    """In one line, before anything is computed."""
    _, folder = save()
    change(folder / file, **values)

    with pytest.raises(CheckpointError, match=said):
        load(folder)
