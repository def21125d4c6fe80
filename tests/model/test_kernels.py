"""model/kernels.py"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN

from model import kernels
from model.attention.positions import beyond_reach
from model.attention.reach import Reach
from model.config import Activation
from model.families import fields
from model.kernels import ONEDNN, PANELS, PLAIN, TILES, Kernels
from model.packing import Packed
from model.steady import ACTIVATIONS

CPU = torch.device("cpu")
ROWS, INPUTS, OUTPUTS = 17, 13, 11
SEQUENCES, HEADS, TOKENS, HEAD = 2, 3, 7, 5
SCALE = 0.37

either = pytest.mark.parametrize(
    "chosen", [way for way in (PLAIN, ONEDNN) if way], ids=lambda way: way.name
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


WEIGHT, BIAS = numbers(OUTPUTS, INPUTS), numbers(OUTPUTS, seed=1)
X, RESIDUAL = numbers(ROWS, INPUTS, seed=2), numbers(ROWS, OUTPUTS, seed=3)


@either
def test_a_linear_is_torchs(chosen: Kernels) -> None:
    """X W^T + b."""
    linear = chosen.linear(WEIGHT, BIAS)

    torch.testing.assert_close(linear(X), F.linear(X, WEIGHT, BIAS), rtol=0, atol=1e-5)


@either
@pytest.mark.parametrize("name", fields.ACTIVATIONS)
def test_a_linear_with_an_activation_is_transformers(chosen: Kernels, name: str) -> None:
    """Of the two GELUs, by the error function and by tanh, the one that the name means."""
    linear = chosen.linear(WEIGHT, BIAS)

    expected = ACT2FN[name](F.linear(X, WEIGHT, BIAS))

    activated = linear.activate(X, fields.ACTIVATIONS[name])
    torch.testing.assert_close(activated, expected, rtol=0, atol=1e-5)


@either
def test_a_linear_adds_the_residual_and_leaves_it_alone(chosen: Kernels) -> None:
    """X W^T + b + residual, whose own numbers may be needed again."""
    linear, residual = chosen.linear(WEIGHT, BIAS), RESIDUAL.clone()

    added = linear.add_to(X, residual)

    torch.testing.assert_close(added, F.linear(X, WEIGHT, BIAS) + RESIDUAL, rtol=0, atol=1e-5)
    assert torch.equal(residual, RESIDUAL)


@either
def test_a_linear_gives_its_weight_back(chosen: Kernels) -> None:
    """In whatever layout it is held, the weight is the one given, bit for bit."""
    assert torch.equal(chosen.linear(WEIGHT, BIAS).weight(), WEIGHT)


@either
def test_a_linear_keeps_its_own_copy(chosen: Kernels) -> None:
    """The tensors given may be a mapped file's, which goes away."""
    weight, bias = WEIGHT.clone(), BIAS.clone()
    linear = chosen.linear(weight, bias)

    weight.zero_(), bias.zero_()

    torch.testing.assert_close(linear(X), F.linear(X, WEIGHT, BIAS), rtol=0, atol=1e-5)


@either
def test_attention_mixes_as_torchs_and_tells_its_normaliser(chosen: Kernels) -> None:
    """The mixed values are scaled dot-product attention's, the rest is the scores' log-sum-exp."""
    q, k, v = numbers(3, SEQUENCES, HEADS, TOKENS, HEAD)

    mixed, normaliser = chosen.attend(q, k, v, SCALE, None)

    expected = F.scaled_dot_product_attention(q, k, v, scale=SCALE)
    scores = torch.einsum("shqc,shkc->shqk", q, k) * SCALE
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(normaliser, scores.logsumexp(-1), rtol=0, atol=1e-5)


@either
def test_sixty_percent_of_one_value_and_forty_of_another(chosen: Kernels) -> None:
    """A word that gives 0.6 to 'all' and 0.4 to itself is mixed of their values in these shares."""
    q = torch.ones(1, 1, 2, 1)
    k = torch.tensor([0.6, 0.4]).log().view(1, 1, 2, 1)
    v = torch.tensor([2.0, 7.0]).view(1, 1, 2, 1)

    mixed, normaliser = chosen.attend(q, k, v, 1.0, None)

    torch.testing.assert_close(mixed, torch.full_like(mixed, 0.6 * 2 + 0.4 * 7))
    torch.testing.assert_close(normaliser, torch.zeros(1, 1, 2), rtol=0, atol=1e-6)


@either
def test_a_word_that_looks_at_one_other_becomes_it(chosen: Kernels) -> None:
    """With all of the attention on 'dog', the value of 'it' is the dog's, bit for bit."""
    q, v = torch.ones(1, 1, TOKENS, 1), numbers(1, 1, TOKENS, 1)
    k = torch.full((1, 1, TOKENS, 1), -1e4)
    k[0, 0, 2] = 0

    mixed, _ = chosen.attend(q, k, v, 1.0, None)

    assert torch.equal(mixed, v[:, :, 2:3].expand_as(v))


@either
def test_attention_on_bfloat16_keeps_its_normaliser_in_float32(chosen: Kernels) -> None:
    """Softmax statistics are not rounded to the weights' precision."""
    q, k, v = numbers(3, SEQUENCES, HEADS, TOKENS, HEAD).bfloat16()

    mixed, normaliser = chosen.attend(q, k, v, SCALE, None)

    assert (mixed.dtype, normaliser.dtype) == (torch.bfloat16, torch.float32)


@either
@pytest.mark.parametrize("tokens", [1, 4, 7, 11, 31])
def test_attention_has_the_same_bits_in_any_company(chosen: Kernels, tokens: int) -> None:
    """How many sequences of one length are mixed at once moves nothing; sizes are the real ones."""
    q, k, v = numbers(13, tokens, 3, 12, 32).permute(2, 0, 3, 1, 4)  # as views, like a layer's

    together, normalisers = chosen.attend(q, k, v, SCALE, None)

    for i in range(13):
        alone, normaliser = chosen.attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], SCALE, None)
        assert torch.equal(together[i], alone[0])
        assert torch.equal(normalisers[i], normaliser[0])


def test_fast_kernels_are_chosen_where_they_agree() -> None:
    """On a CPU in float32, if this build of torch has them at all."""
    assert kernels.choose_kernels(CPU, torch.float32) is (ONEDNN or PLAIN)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_other_number_formats_are_computed_plainly(dtype: torch.dtype) -> None:
    """The fast kernels are float32's, and bfloat16's on some processors."""
    assert kernels.choose_kernels(CPU, dtype) is PLAIN


def test_bfloat16_is_fast_where_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own list of what it can, in tiles with AMX; else it is computed plainly."""
    listed = Path("/proc/cpuinfo")
    features = listed.read_text() if listed.exists() else ""
    able = kernels.COMPILED and "avx512_bf16" in features
    able = able and torch.backends.cpu.get_cpu_capability() == "AVX512"

    chosen = TILES if "amx_tile" in features else PANELS
    assert kernels.choose_kernels(CPU, torch.bfloat16) is (chosen if able else PLAIN)
    monkeypatch.setattr(kernels, "HAS_AMX", True)
    assert kernels.choose_kernels(CPU, torch.bfloat16) is (TILES if able else PLAIN)
    monkeypatch.setattr(kernels, "HAS_HALF", False)
    assert kernels.choose_kernels(CPU, torch.bfloat16) is PLAIN


class Rough(kernels.PlainLinear):
    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """GELU's approximation, wrong in the fourth digit."""
        return super().activate(x, "gelu_tanh" if activation == "gelu" else activation)


class Erring(kernels.PlainLinear):
    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """GELU itself where its approximation is meant."""
        return super().activate(x, "gelu" if activation == "gelu_tanh" else activation)


class Forgetful(kernels.PlainLinear):
    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """A sum without its second half."""
        return self(x)


class Shuffled(kernels.PlainLinear):
    def weight(self) -> Tensor:
        """Rows in another order."""
        return super().weight().flip(0)


class Biased(kernels.PlainLinear):
    def __call__(self, x: Tensor) -> Tensor:
        """A bias added twice, but only where nothing is fused in."""
        return super().__call__(x) + self.bias

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """As it should be."""
        return ACTIVATIONS[activation](super().__call__(x))

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """As it should be."""
        return super().__call__(x) + residual


def absent(weight: Tensor, bias: Tensor) -> kernels.PlainLinear:
    """An operator that this processor cannot run."""
    raise RuntimeError("not implemented on this processor")


def unscaled(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention that forgot its scale."""
    return kernels.attend_plain(q, k, v, 1.0, bias)


def unmixed(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention that leaves each value where it is."""
    return v, kernels.attend_plain(q, k, v, scale, bias)[1]


def unnormalised(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A normaliser to the base of 2."""
    mixed, normaliser = kernels.attend_plain(q, k, v, scale, bias)
    return mixed, normaliser * 1.442695


@pytest.mark.parametrize("linear", [Rough, Erring, Forgetful, Shuffled, Biased, absent])
def test_a_linear_that_disagrees_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, linear: Callable[[Tensor, Tensor], kernels.Linear]
) -> None:
    """Each operation is compared with the plain one before it may serve."""
    monkeypatch.setattr(kernels, "ONEDNN", dataclasses.replace(PLAIN, name="fast", linear=linear))

    assert kernels.choose_kernels(CPU, torch.float32) is PLAIN


def unhidden(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention that forgot what to hide."""
    return kernels.attend_plain(q, k, v, scale, None)


@pytest.mark.parametrize("attend", [unscaled, unmixed, unnormalised, unhidden])
def test_an_attention_that_disagrees_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
    attend: Callable[[Tensor, Tensor, Tensor, float, Tensor | None], tuple[Tensor, Tensor]],
) -> None:
    """Its mixed values and its normaliser are both compared."""
    monkeypatch.setattr(kernels, "ONEDNN", dataclasses.replace(PLAIN, name="fast", attend=attend))

    assert kernels.choose_kernels(CPU, torch.float32) is PLAIN


def picky(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention that takes heads of 8, 16, 24 .. channels, as flash attention on CUDA does."""
    if q.shape[-1] % 8:
        raise RuntimeError("head_size must be a multiple of 8")
    return kernels.attend_plain(q, k, v, scale, bias)


def rounded(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention that drops the channels beyond the last multiple of 8."""
    whole = max(8, q.shape[-1] // 8 * 8)
    mixed, normaliser = kernels.attend_plain(q[..., :whole], k[..., :whole], v, scale, bias)
    return mixed, normaliser


@pytest.mark.parametrize("attend", [picky, rounded])
@pytest.mark.parametrize(("head", "chosen"), [(13, "plain"), (37, "plain"), (24, "fast")])
def test_kernels_are_chosen_for_the_heads_of_the_model(
    monkeypatch: pytest.MonkeyPatch, attend: Callable[..., Any], head: int, chosen: str
) -> None:
    """What does not take them, or mixes them wrong, gives way to what does, before any request."""
    monkeypatch.setattr(kernels, "ONEDNN", dataclasses.replace(PLAIN, name="fast", attend=attend))

    assert kernels.choose_kernels(CPU, torch.float32, head).name == chosen


def test_all_sequences_in_one_call_are_compared_at_the_heads_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The way of GPUs, which is asked for the same numbers."""

    def spread(
        q: Tensor, k: Tensor, v: Tensor, packed: Packed, scale: float, reach: Reach
    ) -> tuple[Tensor, Tensor]:
        used, place = packed.groups[-1].rows.stop, packed.positions
        own = (torch.arange(used) // packed.groups[0].length)[:, None]
        far = beyond_reach(place[:used], place[:used], reach)
        mask = torch.zeros(used, used).masked_fill(far | (own != own.T), -torch.inf)[None]
        shared = [part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (q, k, v)]
        parts = [part[:used].transpose(0, 1)[None] for part in shared]
        mixed, normaliser = picky(parts[0], parts[1], parts[2], scale, mask)
        return F.pad(mixed[0].transpose(0, 1), (0, 0, 0, 0, 0, len(q) - used)), normaliser[0]

    twin = dataclasses.replace(PLAIN, name="fast", attend_packed=spread)
    monkeypatch.setattr(kernels, "ONEDNN", twin)

    assert kernels.choose_kernels(CPU, torch.float32, 40) is twin
    assert kernels.choose_kernels(CPU, torch.float32, 13) is PLAIN


@pytest.mark.parametrize("head", [1, 5, 13, 24, 37, 64, 96, 300])
def test_a_processors_fast_kernels_take_heads_of_any_size(head: int) -> None:
    """If this build of torch has them at all."""
    assert kernels.choose_kernels(CPU, torch.float32, head) is (ONEDNN or PLAIN)


def test_what_agrees_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison refuses only what differs."""
    twin = dataclasses.replace(PLAIN, name="fast")
    monkeypatch.setattr(kernels, "ONEDNN", twin)

    assert kernels.choose_kernels(CPU, torch.float32) is twin


def test_without_fast_kernels_the_plain_ones_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch that lacks the private operators still computes."""
    monkeypatch.setattr(kernels, "ONEDNN", None)

    assert kernels.choose_kernels(CPU, torch.float32) is PLAIN


def test_rms_norm_computes_in_the_wider_of_both_dtypes() -> None:
    """Half-precision rows by a float32 weight are rounded once, at the end."""
    rows, weight = X.bfloat16(), numbers(INPUTS, seed=4)

    found = kernels.normalise(rows, (weight, None), 1e-6, "rms")

    wide = F.rms_norm(rows.float(), [INPUTS], weight, 1e-6)
    assert torch.equal(found, wide.bfloat16())
