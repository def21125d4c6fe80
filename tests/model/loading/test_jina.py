"""Jina Embeddings v3, under both names of its tensors."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import families, kernels
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from tests.model.loading.test_families import CPU, LENGTHS, furthest, theirs
from tests.model.small_tokenizer import save_small_tokenizer

FAMILY = "jina_embeddings_v3"


def load(folder: Path) -> Model:
    """A folder as we load it."""
    save_small_tokenizer(folder)
    return checkpoint.load_checkpoint(
        folder, CPU, torch.float32, kernels.choose_kernels(CPU, torch.float32)
    )


def test_both_spellings_are_one_model(tmp_path: Path) -> None:
    """transformers saves its code's names, and its own modules have others."""
    reference = theirs(FAMILY)
    reference.save_pretrained(tmp_path)
    assert any("mixer.Wqkv" in name for name in load_file(tmp_path / "model.safetensors"))
    saved = load(tmp_path)
    save_file(reference.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    own = load(tmp_path)

    for length in LENGTHS:
        assert furthest(reference, saved, FAMILY, "ids", length) <= 1e-5
        assert furthest(reference, own, FAMILY, "ids", length) <= 1e-5


def test_adapters_of_tasks_are_refused_by_name(tmp_path: Path) -> None:
    """In the tensors and in the code's config."""
    theirs(FAMILY).save_pretrained(tmp_path)
    name = "layers.0.mlp.fc1.parametrizations.weight.0.lora_A"
    tensors = load_file(tmp_path / "model.safetensors") | {name: torch.zeros(5, 4, 48)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())

    with pytest.raises(CheckpointError, match=f"unexpected {name}"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="lora_adaptations .'separation'"):
        families.read_config_and_family(config | {"lora_adaptations": ["separation"]})
