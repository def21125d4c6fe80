"""model/loading/modules.py: what sentence-transformers hands on, or a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

from model.errors import CheckpointError
from tests.model.loads import load
from tests.model.small_tokenizer import FEW, save_few_words

TEXT = "Why is the Caf\u00e9 here?"
SENTENCE = "sentence_bert_config.json"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder of sentence-transformers."""
    base, saved = tmp_path / "base", tmp_path / "saved"
    sizes = {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = BertConfig(**sizes, vocab_size=FEW, intermediate_size=23, max_position_embeddings=37)
    torch.manual_seed(0)
    BertModel(config).save_pretrained(base)
    save_few_words(base)
    SentenceTransformer(str(base), device="cpu").save_pretrained(str(saved))
    return saved


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ["tokenizer_args", "processor_kwargs"])
def test_arguments_hold_over_tokenizer_config(saved: Path, name: str) -> None:
    """Under either name: ids and the longest sequence are sentence-transformers'."""
    change(saved / "tokenizer_config.json", do_lower_case=True, model_max_length=23)
    plain = load(saved)
    arguments = {"do_lower_case": False, "cls_token": "[MASK]", "model_max_length": 19}
    change(saved / SENTENCE, **{name: arguments | {"trust_remote_code": True}})
    with pytest.raises(
        CheckpointError, match="do_lower_case is false, and the file does otherwise"
    ):
        load(saved)
    peer = SentenceTransformer(str(saved), device="cpu")
    peer.tokenizer.backend_tokenizer.save(str(saved / "tokenizer.json"))
    ours = load(saved)

    (found,) = ours.tokenizer([(TEXT,)], 37)

    assert found.token_ids == peer.tokenizer(TEXT)["input_ids"]
    assert found.token_ids != plain.tokenizer([(TEXT,)], 37)[0].token_ids
    assert ours.max_tokens == peer.max_seq_length == 19 != plain.max_tokens
    assert ours.digest != plain.digest


@pytest.mark.parametrize("name", ["config_args", "config_kwargs"])
def test_arguments_hold_over_config(saved: Path, name: str) -> None:
    """And name other weights."""
    plain = load(saved)
    change(saved / SENTENCE, **{name: {"hidden_act": "relu", "use_cache": False}})

    ours = load(saved)

    peer = SentenceTransformer(str(saved), device="cpu")
    assert (ours.config.activation, peer[0].model.config.hidden_act) == ("relu", "relu")
    assert ours.digest != plain.digest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"config_args": {"num_labels": 3}}, "config_args: not supported: num_labels"),
        ({"config_args": {"model_type": "roberta"}}, "config_args: not supported: model_type"),
        ({"model_args": {"quantization_config": {}}}, "model_args: .*: quantization_config"),
        ({"tokenizer_args": {"add_bos_token": True}}, "tokenizer_args: .*: add_bos_token"),
        ({"tokenizer_args": ["x"]}, "tokenizer_args is not an object"),
    ],
    ids=str,
)
def test_an_argument_that_is_not_followed_is_refused_by_name(
    saved: Path, values: dict[str, Any], message: str
) -> None:
    """Before any weight is read."""
    change(saved / SENTENCE, **values)

    with pytest.raises(CheckpointError, match=message):
        load(saved)


def test_a_folder_without_modules_has_no_arguments(saved: Path) -> None:
    """The library does not read that file then."""
    change(saved / SENTENCE, tokenizer_args={"do_lower_case": False})
    (saved / "modules.json").unlink()
    peer = SentenceTransformer(str(saved), device="cpu")

    (found,) = load(saved).tokenizer([(TEXT,)], 37)

    assert found.token_ids == peer.tokenizer(TEXT)["input_ids"]


@pytest.mark.parametrize(
    "said",
    [
        {"truncation_side": "left"},
        {"model_input_names": ["input_ids", "attention_mask"]},
    ],
    ids=str,
)
def test_what_makes_another_tokenizer_names_other_weights(saved: Path, said: Any) -> None:
    """What changes no answer does not."""
    plain = load(saved).digest
    change(saved / "tokenizer_config.json", padding_side="left", never_split=["x"])
    same = load(saved).digest
    change(saved / "tokenizer_config.json", **said)

    assert load(saved).digest != plain == same
