"""Checkpoints that users bring, served from their folders and asked over HTTP."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase

from model.errors import CheckpointError
from service.commands.bulk.jobs import encode_lines as encode_file
from service.commands.bulk.text_file import TextFile
from service.commands.terminal import Failed, Unusable
from service.files.weights import BUNDLED_MODEL, locate_model
from service.preflight.model import open_checkpoint
from service.tables.settings import Settings
from tests.conftest import posted
from tests.service.conftest import Serving
from tests.task_heads import checkpoint

TEXT = "A dog ate the food because it was hungry"
MOST = 13  # rows of the position table


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """The bundled model's, as transformers reads it."""
    return AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder)


def bert(folder: Path, tokenizer: PreTrainedTokenizerBase, **choices: Any) -> BertModel:
    """A small model with random weights, saved with its tokenizer."""
    sizes = {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = BertConfig(
        **sizes | {"vocab_size": len(tokenizer), "intermediate_size": 23} | choices,
        max_position_embeddings=MOST,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


async def encode(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """What is answered of the one input."""
    return (await posted(http, "/v1/encode", {"inputs": [TEXT], **body}))["data"][0]


# `make prove` tries names of other forms
@pytest.mark.parametrize(
    "name",
    ["gelu_new", *(pytest.param(name, marks=pytest.mark.prove) for name in ("relu", "swish"))],
)
async def test_an_activation_of_transformers_is_served_exactly(
    serving: Serving, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, name: str
) -> None:
    """All hidden states, as transformers has them."""
    model = bert(tmp_path, tokenizer, hidden_act=name)
    with torch.inference_mode():
        theirs = model(**tokenizer(TEXT, return_tensors="pt"), output_hidden_states=True)

    async with serving(tmp_path) as http:
        told = await encode(http, layers=[0, 1, 2])

    for layer, state in enumerate(theirs.hidden_states):
        ours = np.array(told["layers"][str(layer)])
        np.testing.assert_allclose(ours, state[0].numpy(), rtol=0, atol=2e-5)


def sentences(folder: Path, tokenizer: PreTrainedTokenizerBase, *modules: str) -> Path:
    """The same as sentence-transformers saves it, with modules that follow it."""
    bert(folder, tokenizer)
    names = ("Transformer", "Pooling", *modules)
    kinds = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" * (i > 0)}
        | {"type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling").mkdir()
    return folder


async def info(http: httpx.AsyncClient) -> dict[str, Any]:
    """GET /info."""
    told: dict[str, Any] = (await http.get("/info")).json()
    return told


POOLED = {"word_embedding_dimension": 15, "pooling_mode_mean_tokens": True}
CLS = {**POOLED, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}


async def test_services_of_one_encoder_with_other_poolings_have_other_weights(
    serving: Serving, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """They start, their vectors differ, and a bulk job of the one does not go on with the other."""
    cls = sentences(tmp_path / "cls", tokenizer, "Normalize")
    mean = sentences(tmp_path / "plain", tokenizer)
    (cls / "1_Pooling" / "config.json").write_text(json.dumps(CLS))
    (mean / "1_Pooling" / "config.json").write_text(json.dumps(POOLED))
    path, out = tmp_path / "texts.jsonl", tmp_path / "vectors.safetensors"
    lines = TextFile.of(path, "jsonl", None)
    path.write_text(f'"{TEXT}"\n"{TEXT * 99}"\n')  # the second is too long: it stops there

    async with serving(cls, served_model_name="one", max_sequences=1) as http:
        first, by_cls = (await info(http))["weights"], await encode(http, layers=[2])
        with pytest.raises(Failed, match="line 2: .* the work so far is kept"):
            await asyncio.to_thread(encode_file, str(http.base_url), None, lines, out, "refuse")
    async with serving(mean, served_model_name="one") as http:
        second, by_mean = (await info(http))["weights"], await encode(http, layers=[2])
        with pytest.raises(Unusable, match=f"weights was {first} and is {second}"):
            await asyncio.to_thread(encode_file, str(http.base_url), None, lines, out, "right")

    assert first != second
    begins = np.array(by_cls["layers"]["2"][0])
    np.testing.assert_allclose(by_cls["pooled"], begins / np.linalg.norm(begins), atol=1e-6)
    middle = np.mean(by_mean["layers"]["2"], axis=0)
    np.testing.assert_allclose(by_mean["pooled"], middle, atol=1e-6)


async def test_a_tokenizer_beyond_the_table_stops_the_start_in_a_line(
    serving: Serving, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Before a text could reach it."""
    bert(tmp_path, tokenizer, vocab_size=len(tokenizer) - 3)

    with pytest.raises(CheckpointError) as refused:
        async with serving(tmp_path):
            raise AssertionError("it serves")

    said = "tokenizer.json reaches id 30521, and the embedding table has 30519 rows"
    assert str(refused.value) == said


async def test_a_text_is_lower_cased_where_the_checkpoint_says_so(
    serving: Serving, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """Tokens in lower case, offsets in the text as it came."""
    folder = sentences(tmp_path, tokenizer)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLED))
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    library = json.loads((folder / "tokenizer.json").read_text())
    library["normalizer"] |= {"lowercase": False, "strip_accents": True}
    (folder / "tokenizer.json").write_text(json.dumps(library))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"do_lower_case": False, "strip_accents": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    async with serving(folder) as http:
        told = await encode(http, inputs=["\u0130 DOG Ate"], attention={"form": "stats"})
        lower = await encode(http, inputs=["\u0130 dog ate".lower()])

    assert told["tokens"] == ["[CLS]", "i", "dog", "ate", "[SEP]"]
    assert told["offsets"] == [[0, 0], [0, 1], [2, 5], [6, 9], [0, 0]]
    assert told["pooled"] == lower["pooled"]


async def test_who_says_how_vectors_are_pooled_is_told(
    serving: Serving,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A plain checkpoint says none: GET /info reports that, and so does a warning at the start."""
    bert(tmp_path, tokenizer)

    async with serving(tmp_path) as http:
        told = await info(http)

    names = ("pooling", "normalize", "pooling_from")
    assert [told[name] for name in names] == ["mean", False, "default"]
    assert "does not say how token vectors become one" in caplog.text


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMaskedLM"])
async def test_who_is_not_asked_for_vectors_is_not_warned_about_them(
    serving: Serving, tmp_path: Path, caplog: pytest.LogCaptureFixture, head: str
) -> None:
    """A classifier, a reranker or a sparse encoder is for its head's answers."""
    checkpoint(tmp_path, head)

    async with serving(tmp_path) as http:
        told = await info(http)

    assert told["pooling_from"] == "default" and len(told["tasks"]) > 1
    assert "does not say how token vectors become one" not in caplog.text


async def test_a_wrong_class_of_tokenizer_is_warned_of_and_changes_no_answer(
    serving: Serving,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """tokenizer.json holds; where no class is named it is the family's, and nothing is said."""
    bert(tmp_path, tokenizer)
    told = []
    for said in ({}, {"tokenizer_class": "RobertaTokenizer"}):
        assert "tokenizer.json is read as it is" not in caplog.text
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
        async with serving(tmp_path) as http:
            told.append(await encode(http))

    assert told[0]["pooled"] == told[1]["pooled"]
    assert "otherwise: tokenizer_class RobertaTokenizer is of byte-level BPE, and" in caplog.text
    (note, _) = open_checkpoint(Settings(model=str(tmp_path)), locate_model(str(tmp_path)))
    assert (note.place, note.grade) == ("tokenizer.json", "note")


async def test_a_checkpoint_that_says_how_it_is_pooled_is_believed(
    client: httpx.AsyncClient,
) -> None:
    """The bundled model does."""
    told = await info(client)

    names = ("pooling", "normalize", "pooling_from")
    assert [told[name] for name in names] == ["mean", True, "checkpoint"]
