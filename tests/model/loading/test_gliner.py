"""A GLiNER's folder: what is read of it, and what is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.entities import Entities
from model.errors import CheckpointError
from model.kernels import PLAIN
from model.loading.checkpoint import load, read
from model.loading.gliner import LONGEST
from model.packing import Sequence
from model.text.pieces import exhaust
from tests.gliner import LABELS, TOKENS, Reference, save

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "token level": ({"span_mode": "token_level"}, "span_mode 'token_level'"),
    "another span": ({"span_mode": "markerV1"}, "span_mode 'markerV1'"),
    "two encoders": ({"labels_encoder": "BAAI/bge"}, "labels_encoder 'BAAI/bge'"),
    "relations": ({"relations_layer": "dot"}, "relations_layer 'dot'"),
    "generated labels": ({"labels_decoder": "gpt2"}, "labels_decoder 'gpt2'"),
    "another word": ({"subtoken_pooling": "mean"}, "subtoken_pooling 'mean'"),
    "another splitter": ({"words_splitter_type": "spacy"}, "words_splitter_type 'spacy'"),
    "fused layers": ({"fuse_layers": True}, "fuse_layers True"),
    "another class": ({"model_type": "gliner_bi_encoder_span"}, "'gliner_bi_encoder_span'"),
    "two LSTMs": ({"num_rnn_layers": 2}, "num_rnn_layers 2"),
    "an odd size": ({"hidden_size": 13}, "hidden_size 13"),
    "no width": ({"max_width": 0}, "max_width 0"),
    "a mark elsewhere": ({"class_token_index": 3}, "class_token_index 3"),
    "marks alike": ({"ent_token": "<<SEP>>"}, "no two marks"),
    "another encoder": ({"encoder_config": {"model_type": "bert"}}, "'bert'"),
    "no encoder": ({"encoder_config": None}, "copy config.json and the tokenizer of"),
}


@pytest.mark.parametrize(("changed", "said"), OTHERS.values(), ids=OTHERS)
def test_another_architecture_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    """Nothing of gliner is computed that is not computed exactly."""
    save(tmp_path)
    path = tmp_path / "gliner_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

    with pytest.raises(CheckpointError, match="gliner_config.json") as refused:
        load(tmp_path, torch.device("cpu"), torch.float32, PLAIN)
    assert said in str(refused.value)


def test_an_encoders_config_may_stand_next_to_it(tmp_path: Path) -> None:
    """As that of a base model that was copied in, whose table is smaller."""
    save(tmp_path)
    path = tmp_path / "gliner_config.json"
    stored = json.loads(path.read_text())
    config = {**stored.pop("encoder_config"), "vocab_size": 7}
    whole = read(tmp_path)
    path.write_text(json.dumps(stored))
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert read(tmp_path) == whole
    load(tmp_path, torch.device("cpu"), torch.float32, PLAIN)


@pytest.mark.parametrize("stated", [{}, {"max_relative_positions": 53}], ids=["unsaid", "said"])
def test_a_sequence_may_be_longer_than_its_positions(
    tmp_path: Path, stated: dict[str, int]
) -> None:
    """Which end nowhere where there are distances only; the formulas agree beyond them."""
    save(tmp_path, max_len=400)
    path = tmp_path / "gliner_config.json"
    config = json.loads(path.read_text())
    config["encoder_config"] |= stated
    path.write_text(json.dumps(config))
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 10**30}))
    text = "the dog ate the food " * 61
    model = load(tmp_path, torch.device("cpu"), torch.float32, PLAIN)
    (head,) = model.task_heads
    assert isinstance(head, Entities)

    (spliced,) = exhaust(head.splicer.reading(LABELS, [text], model.max_tokens, "refuse"))
    tokenized = spliced.tokenized
    with torch.inference_mode():
        packed = model.encoder.pack([Sequence(tokenized.token_ids, tokenized.types)])
        last = model.encoder(packed).last[packed.rows(0)]
        found = replace(head, names=tuple(LABELS), spliced=spliced).scores(last)

    assert len(tokenized.token_ids) > 3 * TOKENS and model.max_tokens == LONGEST
    expected = list(Reference(tmp_path).scores(text, LABELS).values())
    ours = found[found >= 0]  # no score beyond the last word
    torch.testing.assert_close(ours, torch.tensor(expected), rtol=0, atol=1e-5)


def test_positions_that_are_learned_end(tmp_path: Path) -> None:
    """As an encoder's that has a table of them."""
    save(tmp_path)
    path = tmp_path / "gliner_config.json"
    config = json.loads(path.read_text())
    config["encoder_config"]["position_biased_input"] = True
    path.write_text(json.dumps(config))

    assert read(tmp_path).max_tokens == TOKENS


def test_the_number_of_threads_changes_no_bit(tmp_path: Path) -> None:
    """Of the LSTM, at the sizes of the models on the hub."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(512, 256, bidirectional=True, batch_first=True).requires_grad_(False)
    rows, threads = torch.randn(1, 37, 512), torch.get_num_threads()
    try:
        made = []
        for count in (1, 2):
            torch.set_num_threads(count)
            made.append(lstm(rows)[0])
    finally:
        torch.set_num_threads(threads)

    assert torch.equal(*made)
