"""What a model computes is held against the plain float32 path, and not served where it differs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import kernels
from model.attention.reach import Reach
from service.files.loading import load_model
from service.files.weights import BUNDLED_MODEL, locate_model
from service.proof.comparison import NotTrustworthy, check_against_plain
from tests.decoders import embedder, embedding_gemma

CPU = torch.device("cpu")
PRESET = "preset:transformer-base"
DTYPES = torch.float32, torch.bfloat16, torch.float16


def unscaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that forgot its scale."""
    return kernels.attend_plain(q, k, v, 1.0, bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "model",
    [
        "loud",
        # a small model shows a broken kernel as well; `make prove` tries large ones
        pytest.param(BUNDLED_MODEL, marks=pytest.mark.prove),
        pytest.param(PRESET, marks=pytest.mark.prove),
    ],
)
def test_every_number_format_is_held_against_plain_float32(
    loud: Path, model: str, dtype: torch.dtype
) -> None:
    """At the start, by the canary; a path that computes something else does not serve."""
    found = locate_model(str(loud) if model == "loud" else model)
    broken = replace(kernels.PLAIN, attend=unscaled)
    check_against_plain(load_model(found, CPU, dtype, kernels.PLAIN), found, dtype)

    with pytest.raises(NotTrustworthy, match="differs from the plain float32 path's by"):
        check_against_plain(load_model(found, CPU, dtype, broken), found, dtype)


def short_of_keys(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that forgets all keys beyond its first tile."""
    return kernels.attend_plain(q, k[:, :, :128], v[:, :, :128], scale, bias)


def test_half_precision_is_held_to_more_than_a_tile_of_keys(loud: Path) -> None:
    """Kernels loop over tiles: a canary of one says nothing of the others."""
    found, dtype = locate_model(str(loud)), torch.bfloat16
    broken = replace(kernels.PLAIN, attend=short_of_keys)
    check_against_plain(load_model(found, CPU, dtype, kernels.PLAIN), found, dtype)

    with pytest.raises(NotTrustworthy, match="differs from the plain float32 path's by"):
        check_against_plain(load_model(found, CPU, dtype, broken), found, dtype)


def unmasked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that looks at what is hidden too."""
    return kernels.attend_plain(q, k, v, scale)


# Each mask in one format of the two; `make prove` tries the other
@pytest.mark.parametrize(
    ("written", "dtype"),
    [
        pytest.param(embedder, torch.bfloat16, id="causal-bfloat16"),
        pytest.param(embedding_gemma, torch.float16, id="windows-float16"),
        pytest.param(embedder, torch.float16, id="causal-float16", marks=pytest.mark.prove),
        pytest.param(
            embedding_gemma, torch.bfloat16, id="windows-bfloat16", marks=pytest.mark.prove
        ),
    ],
)
def test_half_precision_is_held_to_each_layers_mask(
    tmp_path: Path, written: Callable[[Path, Path], Path], dtype: torch.dtype
) -> None:
    """None at all, or a key too many: vectors hardly show it where attention adds little."""
    found = locate_model(str(written(tmp_path / "plain", tmp_path / "model")))
    path = found.folder / "model.safetensors"
    stored = load_file(path)
    for name in stored:
        stored[name] *= 0.003 if name.endswith("o_proj.weight") else 1
    save_file(stored, path, {"format": "pt"})
    check_against_plain(load_model(found, CPU, dtype, kernels.PLAIN), found, dtype)
    wider = load_model(found, CPU, dtype, kernels.PLAIN)
    for layer in wider.encoder.layers:
        sides = (None if side is None else side + 1 for side in layer.attention.reach)
        layer.attention.reach = Reach(*sides)
    blind = load_model(found, CPU, dtype, replace(kernels.PLAIN, attend=unmasked))

    for broken in (wider, blind):
        with pytest.raises(NotTrustworthy, match="the attention of layer 0 differs from"):
            check_against_plain(broken, found, dtype)
