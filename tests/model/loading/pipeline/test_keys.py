"""Every key of sentence-transformers' module files is known, or refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
)
from transformers import BertForSequenceClassification

from model.errors import CheckpointError
from model.loading.pipeline.keys import KNOWN_KEYS
from tests.model.loading.pipeline.conftest import POSITIONS, WIDTH, change, config
from tests.model.loads import load

PARTS = (Pooling, Dense, LayerNorm, Dropout, Normalize)
FILES = {
    "Transformer": "sentence_bert_config.json",
    **{kind.__name__: f"{i}_{kind.__name__}/config.json" for i, kind in enumerate(PARTS, 1)},
}


@pytest.fixture(scope="module")
def stack(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of each kind."""
    to = tmp_path_factory.mktemp("stack")
    parts = [Pooling(WIDTH), Dense(WIDTH, WIDTH), LayerNorm(WIDTH), Dropout(), Normalize()]
    peer = SentenceTransformer(modules=[Transformer(str(bert)), *parts], device="cpu")
    peer.save_pretrained(str(to), create_model_card=False)
    return to


@pytest.fixture
def copied(stack: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(stack, tmp_path / "copy"))


@pytest.mark.parametrize(("kind", "file"), FILES.items(), ids=FILES.keys())
def test_an_unknown_key_is_refused_by_name(copied: Path, kind: str, file: str) -> None:
    """What a later version computes with it is not left out in silence."""
    load(copied)
    change(copied / file, temperature=0.5)

    place = file.partition("/")[0]
    with pytest.raises(CheckpointError, match=f"{place}: not supported: unknown key 'temperature'"):
        load(copied)


@pytest.mark.parametrize("kind", [Transformer, *PARTS], ids=lambda kind: kind.__name__)
def test_the_keys_that_the_library_writes_are_known(kind: type) -> None:
    """A new one in a new release fails here."""
    renamed: dict[str, str] = getattr(kind, "config_key_renames")  # noqa: B009

    assert {*getattr(kind, "config_keys"), *renamed} <= KNOWN_KEYS  # noqa: B009


VALUES: dict[str, dict[str, Any]] = {
    "processing_kwargs": {"processing_kwargs": {"text": {"max_length": 5}}},
    "tokenizer_name_or_path": {"tokenizer_name_or_path": "other"},
    "transformer_task 'fill-mask'": {"transformer_task": "fill-mask"},
    "module_output_name 'sentence_embedding'": {"module_output_name": "sentence_embedding"},
    "modality_config": {
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}
    },
    "query_length 5": {"query_length": 5},
    "document_length 5": {"document_length": 5},
    "query_expansion": {"query_expansion": {"strategy": "fixed", "length": 5}},
}


@pytest.mark.parametrize(("said", "values"), VALUES.items(), ids=VALUES.keys())
def test_a_value_that_is_not_computed_is_refused_by_name(
    copied: Path, said: str, values: dict[str, Any]
) -> None:
    """Of the Transformer, which has most keys."""
    change(copied / FILES["Transformer"], **values)

    with pytest.raises(CheckpointError, match=f"sentence_bert_config.json: not supported: {said}"):
        load(copied)


IDLE: list[dict[str, Any]] = [
    {"unpad_inputs": False},
    {"model_args": {"torch_dtype": "float32", "attn_implementation": "eager"}},
    {"query_length": None, "document_length": None, "query_expansion": None},
    {"processing_kwargs": {}},
]


@pytest.mark.parametrize("values", IDLE, ids=str)
def test_a_value_without_effect_is_taken(copied: Path, values: dict[str, Any]) -> None:
    """It changes not even the digest."""
    before = load(copied).digest
    change(copied / FILES["Transformer"], **values)

    assert load(copied).digest == before


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"max_active_dims": 5}, "not supported: max_active_dims 5"),
        ({"truncate_dim": 0}, "truncate_dim is no positive integer: 0"),
        ({"truncate_dim": "5"}, "truncate_dim is no positive integer: '5'"),
    ],
    ids=str,
)
def test_a_stored_cut_of_vectors_that_cannot_be_made_is_refused_by_name(
    copied: Path, stored: dict[str, Any], said: str
) -> None:
    """Only the first numbers are kept, at least one."""
    change(copied / "config_sentence_transformers.json", **stored)

    with pytest.raises(CheckpointError, match=said):
        load(copied)


@pytest.fixture
def reranker(folder: Path, tmp_path: Path, write: Callable[..., Path]) -> Path:
    """A CrossEncoder's folder as transformers saves it, without modules.json."""
    write(tmp_path)
    torch.manual_seed(4)
    tokens = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    sizes = config(vocab_size=tokens, num_labels=1)
    BertForSequenceClassification(sizes).save_pretrained(tmp_path)
    change(tmp_path / "sentence_bert_config.json", max_seq_length=9, temperature=0.5)
    return tmp_path


@pytest.mark.parametrize(("stored", "most"), [(512, POSITIONS), (23, 23)])
def test_a_lone_cross_encoder_is_as_long_as_its_tokenizer_says(
    reranker: Path, stored: int, most: int
) -> None:
    """The library reads nothing of sentence_bert_config.json where modules.json is not there."""
    change(reranker / "tokenizer_config.json", model_max_length=stored)
    peer = CrossEncoder(str(reranker), device="cpu")

    assert load(reranker).max_tokens == peer.max_seq_length == most
