"""Small models that sentence-transformers saves, and how ours are loaded and run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel

from model.loading.checkpoint import Model
from model.packing import Sequence, pack_sequences
from model.pooling import pool_sequence
from tests.model.loads import CPU
from tests.model.small_tokenizer import few_words

WIDTH, POSITIONS = 15, 37
TEXTS = (
    "A dog ate the food, because it was hungry!",
    "yes",
    "The animal did not cross the street: it was too tired. And then it slept until the evening.",
)


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file."""
    given = {**(json.loads(path.read_text()) if path.exists() else {}), **values}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(given))


@torch.inference_mode()
def vectors(model: Model, *texts: str) -> Tensor:
    """What ours makes of some texts, in one batch."""
    cut = model.tokenizer([(text,) for text in texts], model.max_tokens, "right")
    packed = pack_sequences([Sequence(tokens.token_ids) for tokens in cut], CPU)
    last = model.encoder(packed).last
    return torch.stack(
        [pool_sequence(last[packed.rows(i)], model.pooling) for i in range(len(texts))]
    )


def config(**choices: Any) -> BertConfig:
    """Sizes of a small model."""
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 23,
        "max_position_embeddings": POSITIONS,
        "initializer_range": 0.5,
    }
    return BertConfig(**sizes | choices)


@pytest.fixture(scope="session")
def write() -> Callable[..., Path]:
    """Save a small BERT of random weights, as transformers does, with a tokenizer of few words."""
    tokenizer = few_words()

    def write(to: Path, head: bool = False, **choices: Any) -> Path:
        torch.manual_seed(2)
        kind = BertForMaskedLM if head else BertModel
        kind(config(vocab_size=len(tokenizer), **choices)).save_pretrained(to)
        tokenizer.save_pretrained(to)
        return to

    return write


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory, write: Callable[..., Path]) -> Path:
    """An encoder's folder."""
    return write(tmp_path_factory.mktemp("bert"))
