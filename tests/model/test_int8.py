"""model/int8.py"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model import int8, kernels
from model.int8 import Int8Linear
from model.kernels import ACTIVATIONS, NormedLinear
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.native import agreement, library, stack
from model.packing import Sequence
from tests.model.native.test_native import BERT, made

CPU = torch.device("cpu")
INPUTS, OUTPUTS, MOST_ROWS = 384, 80, 66
ROWS = (1, 2, 15, 16, 17, 64, MOST_ROWS)
LONG = [101, *range(2000, 2060), 102]


def numbers(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, RESIDUAL = numbers(MOST_ROWS, INPUTS, seed=0), numbers(MOST_ROWS, OUTPUTS, seed=1)
BIAS = numbers(OUTPUTS, seed=3)


def linear(bias: Tensor | None = BIAS, inputs: Tensor = X) -> Int8Linear:
    """One whose channels have the ranges of some inputs."""
    return Int8Linear(numbers(OUTPUTS, INPUTS, seed=2), bias, inputs.amin(0), inputs.amax(0))


def reference(made: Int8Linear, rows: Tensor) -> NDArray[np.float32]:
    """The same product of integers in numpy, then a factor and a summand in float32."""
    numbers = rows.numpy() * made.inverse.numpy() + made.shift.numpy()
    codes = np.clip(numbers, 0, 255).astype(np.uint8).astype(np.int64)
    sums = codes @ made.codes.numpy().astype(np.int64).T
    assert np.abs(sums).max() < 2**31
    found: NDArray[np.float32] = sums.astype(np.float32) * made.scales.numpy()
    found += made.folded.numpy()
    return found


@pytest.mark.vnni
def test_a_linear_that_is_normalised_behind_keeps_its_norm() -> None:
    """Gemma's: the product alone becomes int8's, and states stay close to float32's."""
    config = replace(BERT, pre_norm=True, first_norm=True, block_norm=True, norm="rms")
    encoder = made(replace(config, norm_bias=False))
    ids = [Sequence([5 + i for i in range(n)], [0] * n) for n in (7, 23, 40)]

    def run() -> Tensor:
        packed = encoder.pack(ids)
        return encoder(packed).last[: packed.groups[-1].rows.stop]

    with torch.inference_mode():
        before = run()
        int8.quantise(encoder, run)
        after = run()

    assert isinstance(encoder.layers[0].attention.output, NormedLinear)
    assert all(isinstance(site.linear, Int8Linear) for site in int8.sites(encoder))
    assert torch.cosine_similarity(before, after).min() > 0.99


@pytest.mark.vnni
def test_a_layer_that_stands_for_all_is_quantised_once() -> None:
    """On what enters it at every depth; ALBERT's."""
    encoder = made(replace(BERT, shared=True))
    packed = encoder.pack([Sequence(list(range(40))), Sequence([7, 3, 9])])
    before = encoder(packed).last

    int8.quantise(encoder, lambda: encoder(packed))

    assert len(encoder.layers) == BERT.layers > 1
    assert [type(site.linear) for site in int8.sites(encoder)] == [Int8Linear] * 4
    assert torch.cosine_similarity(before, encoder(packed).last).min() > 0.99


@pytest.mark.vnni
@pytest.mark.parametrize("bias", [BIAS, None], ids=["bias", "no bias"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_product_is_that_of_integers_to_the_bit(rows: int, bias: Tensor | None) -> None:
    """Whatever the number of rows; a residual is added last."""
    made, x, residual = linear(bias), X[:rows], RESIDUAL[:rows]

    expected = reference(made, x)

    np.testing.assert_array_equal(made(x).numpy(), expected)
    np.testing.assert_array_equal(made.add(x, residual).numpy(), expected + residual.numpy())


@pytest.mark.vnni
def test_the_largest_sums_are_exact() -> None:
    """No sum of any two or four products is cut to 16 bits."""
    made = Int8Linear(torch.ones(OUTPUTS, INPUTS), None, torch.zeros(INPUTS), torch.ones(INPUTS))
    top = torch.full((1, INPUTS), 2.0)  # beyond every range: the highest code

    assert made.quantise(top).eq(255).all()
    np.testing.assert_array_equal(made(top).numpy(), reference(made, top))
    torch.testing.assert_close(made(top), torch.full((1, OUTPUTS), float(INPUTS)))


@pytest.mark.vnni
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_follows_in_float32(activation: Any) -> None:
    """Of the two GELUs the one that is named."""
    made = linear()

    found = made.activated(X, activation)

    torch.testing.assert_close(found, ACTIVATIONS[activation](made(X)), rtol=0, atol=1e-5)


@pytest.mark.vnni
@pytest.mark.parametrize("rows", ROWS)
def test_bits_do_not_follow_from_the_batch(rows: int) -> None:
    """Of a product, with an activation, and with a residual."""
    made = linear()
    ways: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda x, _: made(x),
        lambda x, _: made.activated(x, "gelu"),
        lambda x, residual: made.add(x, residual),
    ]
    for way in ways:
        assert torch.equal(way(X, RESIDUAL)[:rows], way(X[:rows], RESIDUAL[:rows]))


@pytest.mark.vnni
def test_an_outlying_channel_costs_the_others_little() -> None:
    """What it has more than they is moved into the weights; one scale for all would lose them."""
    x = X.clone()
    x[:, 7] *= 100
    weight = numbers(OUTPUTS, INPUTS, seed=2)
    weight[:, 7] /= 100
    made = Int8Linear(weight, None, x.amin(0), x.amax(0))
    single = torch.full((INPUTS,), 1.0) * x.abs().max()
    alike = Int8Linear(weight, None, -single, single)
    exact = x @ weight.T

    lost, without = ((way(x) - exact).norm() / exact.norm() for way in (made, alike))

    assert lost < 0.02 < 0.1 < without


@pytest.mark.vnni
def test_the_weight_that_codes_stand_for_is_near_the_real_one() -> None:
    """Within half a step."""
    made = linear()
    step = made.scales[:, None] / made.steps

    apart = (made.weight() - numbers(OUTPUTS, INPUTS, seed=2)).abs()

    assert (apart <= step * 0.501).all()


@pytest.fixture
def quantised(folder: Path) -> Model:
    """The bundled model with int8 linears, measured on one sequence."""
    model = checkpoint.load(folder, CPU, torch.float32, kernels.choose(CPU, torch.float32))
    encoder = model.encoder
    with torch.inference_mode():
        int8.quantise(encoder, lambda: encoder(encoder.pack([Sequence(LONG)])))
    return model


@pytest.mark.vnni
def test_every_linear_of_the_layers_is_int8s(quantised: Model) -> None:
    """Four of each layer, under names that differ."""
    found = list(int8.sites(quantised.encoder))

    assert len({site.name for site in found}) == len(found) == 4 * quantised.config.layers
    assert all(isinstance(site.linear, Int8Linear) for site in found)


@pytest.mark.vnni
def test_the_compiled_pass_has_the_bits_of_the_loop(quantised: Model) -> None:
    """And not if one of its scales differs."""
    try:
        operator = library.load()
    except library.Missing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")
    encoder = quantised.encoder
    with torch.inference_mode():
        native = stack.Stack(encoder, operator)
        assert agreement.agrees(encoder, native)

        changed = next(int8.sites(encoder)).linear
        assert isinstance(changed, Int8Linear)
        changed.scales = changed.scales * 1.001
        assert not agreement.agrees(encoder, native)


@pytest.mark.skipif(sys.platform != "linux", reason="of oneDNN on x86")
@pytest.mark.vnni
def test_a_processor_that_cuts_its_sums_is_found_out() -> None:
    """As one of AVX-512 without VNNI, to which oneDNN is held here."""
    tried = "import model.int8 as i; print(i.exact())"
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    run = [sys.executable, "-W", "ignore", "-c", tried]

    told = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout

    assert told.strip() == "False"
