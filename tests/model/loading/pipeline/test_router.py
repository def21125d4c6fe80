"""A SparseEncoder that looks queries up in a table answers as sentence-transformers does."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from model.config import Side
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import Splade
from tests.model.loading.pipeline.conftest import POSITIONS, TEXTS, WIDTH, change, load
from tests.routed import routed

QUERIES = (*TEXTS, "dog dog DOG, the dog", "[SEP] is a word of its own", "the food " * 30)
TABLE = "query_0_SparseStaticEmbedding"
Save = Callable[..., tuple[SparseEncoder, Path]]


@pytest.fixture
def save(write: Callable[..., Path], tmp_path: Path) -> Save:
    """Save a model; gives theirs as it loads again, and the folder."""

    def save(**choices: Any) -> tuple[SparseEncoder, Path]:
        masked = write(tmp_path / "masked", head=True)
        return routed(masked, tmp_path / "routed", **choices), tmp_path / "routed"

    return save


@torch.inference_mode()
def ours(model: Model, text: str, side: Side) -> Tensor:
    """The weights of a text, cut as the library cuts it, over the vocabulary."""
    assert isinstance(model.task_heads[0], Splade)
    role = model.task_heads[0].roles[side]
    (one,) = model.tokenizer([(text,)], role.length - role.added, "right", role.prompt or "")
    ids = role.frame(one).token_ids
    head = replace(model.task_heads[0], looked=ids) if side == "query" else model.task_heads[0]
    encoded = model.encoder(model.encoder.pack([Sequence(ids)]))
    found = head(encoded.last[encoded.packed.rows(0)])
    weights = torch.zeros(model.config.vocabulary)
    return weights.index_copy(0, found["indices"].long(), found["values"])


@pytest.mark.parametrize(
    "choices",
    [{}, {"default_route": "query"}, {"prompts": {"query": "find: ", "document": "text: "}}],
    ids=str,
)
def test_either_side_is_sentence_transformers(save: Save, choices: dict[str, Any]) -> None:
    """Queries by the table, documents by the encoder, cut and uncut, with prompts."""
    peer, folder = save(**choices)
    model = load(folder)

    assert model.tasks == ("encode", "sparse") and isinstance(model.task_heads[0], Splade)
    assert model.task_heads[0].default == choices.get("default_route", "document")
    for text in QUERIES:
        expected = peer.encode_query(text, convert_to_sparse_tensor=False)
        torch.testing.assert_close(ours(model, text, "query"), expected, rtol=0, atol=1e-5)
        expected = peer.encode_document(text, convert_to_sparse_tensor=False)
        torch.testing.assert_close(ours(model, text, "document"), expected, rtol=0, atol=1e-5)


def test_the_sizes_are_those_of_the_routes_encoder(save: Save) -> None:
    """Its config.json lies in the route's folder."""
    _, folder = save()

    assert checkpoint.read(folder).max_tokens == POSITIONS


def test_table_and_routes_are_in_the_digest(save: Save) -> None:
    """Other weights of queries, another length, another default."""
    _, folder = save()
    digests = {load(folder).digest}
    path = folder / TABLE / "model.safetensors"
    save_file({"weight": load_file(path)["weight"] + 1}, path)
    digests.add(load(folder).digest)
    change(folder / TABLE / "tokenizer_config.json", model_max_length=9)
    digests.add(load(folder).digest)
    parameters = {"default_route": "query"}
    change(folder / "router_config.json", parameters=parameters)
    digests.add(load(folder).digest)

    assert len(digests) == 4


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        FILE := "router_config.json",
        {"parameters": {"default_route": None, "allow_empty_key": False}},
        "default_route None",
    ),
    (FILE, {"parameters": {"route_mappings": {"(None, 'text')": "query"}}}, "route_mappings"),
    (FILE, {"parameters": {"temperature": 1}}, "unknown key 'temperature'"),
    (FILE, {"structure": {"document": [TABLE], "query": [TABLE]}}, "not supported: document by"),
    (FILE, {"structure": {"query": [TABLE]}}, "not supported: query by SparseStaticEmbedding"),
    (FILE, {"structure": None}, "a route without types and structure"),
    (f"{TABLE}/config.json", {"weights": 5}, "unknown key 'weights'"),
    (f"{TABLE}/tokenizer.json", {"normalizer": None}, "another tokenizer than the encoder's"),
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


def test_a_router_of_two_encoders_is_refused_by_name(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    """Queries would be encoded as documents."""
    bert = str(write(tmp_path / "bert"))
    sides = [[Transformer(bert), Pooling(WIDTH)] for _ in range(2)]
    peer = SentenceTransformer(modules=[Router.for_query_document(*sides)], device="cpu")
    peer.save_pretrained(str(tmp_path / "two"), create_model_card=False)

    with pytest.raises(CheckpointError, match="not supported: query by Transformer, Pooling"):
        load(tmp_path / "two")


def test_weights_below_0_are_refused_by_name(save: Save) -> None:
    """A sparse vector leaves them out, and the library keeps them."""
    _, folder = save()
    path = folder / TABLE / "model.safetensors"
    save_file({"weight": load_file(path)["weight"] - 0.5}, path)

    with pytest.raises(CheckpointError, match="not supported: weights below 0"):
        load(folder)


def test_a_route_outside_the_folder_is_refused(save: Save) -> None:
    """Nothing is read there."""
    _, folder = save()
    path = folder / "router_config.json"
    path.write_text(path.read_text().replace(TABLE, "../elsewhere"))
    assert "../elsewhere" in json.loads(path.read_text())["types"]

    with pytest.raises(CheckpointError, match="names a folder outside"):
        load(folder)
