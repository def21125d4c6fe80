"""What stands behind a Pooling computes what sentence-transformers computes, in any order."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Dropout,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
)
from torch import nn

from model.errors import CheckpointError
from model.similarity import LinearPooling, NotLinear
from tests.model.loading.pipeline.conftest import TEXTS, WIDTH, change, vectors
from tests.model.loads import load

Save = Callable[..., tuple[SentenceTransformer, Path]]


@pytest.fixture
def save(bert: Path, tmp_path: Path) -> Save:
    """Put modules behind the small model; gives theirs as it loads again, and the folder."""

    def save(*parts: nn.Module) -> tuple[SentenceTransformer, Path]:
        torch.manual_seed(3)
        for part in parts:
            for weight in part.parameters():
                nn.init.normal_(weight)
        peer = SentenceTransformer(modules=[Transformer(str(bert)), *parts], device="cpu")
        peer.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
        return SentenceTransformer(str(tmp_path / "saved"), device="cpu"), tmp_path / "saved"

    return save


STACKS: dict[str, Callable[[], list[nn.Module]]] = {
    "norm": lambda: [LayerNorm(WIDTH)],
    "dropout": lambda: [Dropout(0.9), Normalize()],
    "norm, dense, norm": lambda: [LayerNorm(WIDTH), Dense(WIDTH, 8), LayerNorm(8), Normalize()],
    "normalised, then dense": lambda: [Normalize(), Dense(WIDTH, 8), Dropout()],
    "normalised twice": lambda: [Normalize(), LayerNorm(WIDTH), Normalize(), Dropout(0.5)],
    "dense, added to what it reads": lambda: [Dense(WIDTH, WIDTH, use_residual=True)],
    "dense, added to what it reads, turned": lambda: [Dense(WIDTH, 8, use_residual=True)],
    "tokens normalised": lambda: [Normalize("token_embeddings")],
    "tokens normalised, then dense": lambda: [Normalize("token_embeddings"), Dense(WIDTH, 8)],
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_layers_in_any_order_are_sentence_transformers(
    save: Save, stack: Callable[[], list[nn.Module]]
) -> None:
    """Dropout does nothing, and what scales the tokens' vectors does nothing to the text's."""
    peer, folder = save(Pooling(WIDTH), *stack())
    expected = peer.encode(list(TEXTS), convert_to_tensor=True)

    model = load(folder)

    assert model.pooling.uncut_size(WIDTH) == expected.shape[1]
    torch.testing.assert_close(vectors(model, *TEXTS), expected, rtol=0, atol=1e-5)


def test_a_norms_weights_are_in_the_digest(save: Save) -> None:
    """Other vectors are other weights."""
    _, folder = save(Pooling(WIDTH), LayerNorm(WIDTH))
    before, path = load(folder).digest, folder / "2_LayerNorm" / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "norm.bias": tensors["norm.bias"] + 1}, path)

    assert load(folder).digest != before


def test_the_order_of_layers_is_in_the_digest(save: Save) -> None:
    """The same files, called in another order."""
    _, folder = save(Pooling(WIDTH), LayerNorm(WIDTH), Normalize())
    before, path = load(folder).digest, folder / "modules.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([*rows[:2], rows[3], rows[2]]))

    assert load(folder).digest != before


def test_a_dense_layer_may_leave_out_what_it_hands_on(save: Save) -> None:
    """Null stands for what it reads."""
    peer, folder = save(Pooling(WIDTH), Dense(WIDTH, 8))
    change(folder / "2_Dense" / "config.json", module_output_name=None)

    expected = peer.encode(list(TEXTS), convert_to_tensor=True)
    torch.testing.assert_close(vectors(load(folder), *TEXTS), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"module_input_name": "token_embeddings", "module_output_name": "sentence_embedding"},
        {"module_input_name": "cls_token_embeddings"},
        {"module_output_name": "normalized"},
        {"module_input_name": None},
    ],
    ids=str,
)
def test_a_normalisation_of_something_else_is_refused_by_name(
    save: Save, config: dict[str, str | None]
) -> None:
    """It would be scaled for nothing, or not at all."""
    _, folder = save(Pooling(WIDTH), Normalize())
    change(folder / "2_Normalize" / "config.json", **config)

    with pytest.raises(CheckpointError, match="2_Normalize: not supported: module_input_name"):
        load(folder)


@pytest.mark.parametrize("part", [LayerNorm(WIDTH), Normalize()], ids=["norm", "unit"])
def test_shares_of_a_likeness_are_refused_behind_what_is_not_linear(
    save: Save, part: nn.Module
) -> None:
    """They would not sum to the score."""
    _, folder = save(Pooling(WIDTH), part, Dense(WIDTH, 8, activation_function=nn.Identity()))

    with pytest.raises(NotLinear, match="LayerNorm, or a scaling"):
        LinearPooling(load(folder).pooling)
