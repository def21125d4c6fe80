"""Of a SparseEncoder's Router documents answer as sentence-transformers does; queries do not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor

from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import Splade
from tests.model.loading.pipeline.conftest import POSITIONS, TEXTS, WIDTH, change
from tests.model.loads import load
from tests.sparse_router import routed

LONG = (*TEXTS, "dog dog DOG, the dog", "[SEP] is a word of its own", "the food " * 30)
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
def ours(model: Model, text: str) -> Tensor:
    """The weights of a document, cut as the library cuts it, over the vocabulary."""
    assert isinstance(model.task_heads[0], Splade)
    role = model.task_heads[0].roles["document"]
    (one,) = model.tokenizer(
        [(text,)], role.length - role.marker_tokens, "right", role.prompt or ""
    )
    ids = role.frame_text(one).token_ids
    encoded = model.encoder(model.encoder.pack([Sequence(ids)]))
    found = model.task_heads[0](encoded.last[encoded.packed.rows(0)])
    weights = torch.zeros(model.config.vocabulary)
    return weights.index_copy(0, found["indices"].long(), found["values"])


@pytest.mark.parametrize(
    "choices", [{}, {"prompts": {"query": "find: ", "document": "text: "}}], ids=str
)
def test_documents_are_sentence_transformers(save: Save, choices: dict[str, Any]) -> None:
    """By the encoder, cut and uncut, with prompts; the table of queries is not read."""
    peer, folder = save(**choices)
    model = load(folder)

    assert model.tasks == ("encode", "sparse") and isinstance(model.task_heads[0], Splade)
    assert list(model.task_heads[0].roles) == ["document"]
    for text in LONG:
        expected = peer.encode_document(text, convert_to_sparse_tensor=False)
        torch.testing.assert_close(ours(model, text), expected, rtol=0, atol=1e-5)


def test_the_sizes_are_those_of_the_routes_encoder(save: Save) -> None:
    """Its config.json lies in the route's folder."""
    _, folder = save()

    assert checkpoint.read_sizes(folder).max_tokens == POSITIONS


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
    (FILE, {"parameters": {"default_route": "query"}}, "default_route 'query'; write 'document'"),
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


def test_a_route_outside_the_folder_is_refused(save: Save) -> None:
    """Nothing is read there."""
    _, folder = save()
    path = folder / "router_config.json"
    path.write_text(path.read_text().replace(TABLE, "../elsewhere"))
    assert "../elsewhere" in json.loads(path.read_text())["types"]

    with pytest.raises(CheckpointError, match="names a folder outside"):
        load(folder)
