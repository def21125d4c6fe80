"""What the engine's tests share."""

import os
import shutil
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import pytest
import torch
from transformers import BertConfig, BertModel

from service.engine.weights import BUNDLED, locate


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """A small BERT whose last hidden state is about 20 everywhere; one head, of odd size."""
    torch.manual_seed(0)
    bert = BertModel(
        BertConfig(
            vocab_size=30522,  # the bundled tokenizer's
            hidden_size=37,
            num_hidden_layers=2,
            num_attention_heads=1,
            intermediate_size=53,
            max_position_embeddings=419,
        )
    )
    with torch.no_grad():
        bert.encoder.layer[-1].output.LayerNorm.bias.fill_(20.0)
    bert.save_pretrained(tmp_path)
    shutil.copy(locate(BUNDLED).folder / "tokenizer.json", tmp_path)
    return tmp_path
