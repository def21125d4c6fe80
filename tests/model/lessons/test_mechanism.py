"""model/lessons.py: the mechanism"""

import importlib
import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from onnx.backend.test.case import node as onnx_nodes
from onnx.helper import get_attribute_value
from torch import Tensor

from model.attention.positions import Rope, Rotation, distance_buckets
from model.kernels import Affine
from model.lessons import attention_probabilities, mix_values, score_keys
from tests.multi_head import Attended, MultiHead, attend, capped

BATCH, HEADS, QUERIES, KEYS, D_K, D_V = 2, 3, 5, 7, 4, 11
WIDTH, WIDTH_KEY, WIDTH_OUT = 13, 17, 19
NAN, INF = math.nan, math.inf

FUZZED = 100
CLOSE = 1e-5  # absolute, against torch's own layer

# The ONNX node cases of Attention that are run, less "test_attention_": one sequence of keys,
# whole, with as many heads as the queries or one for all of them.
ENCODER = """
    23_boolmask_fullymasked_row_nan_robustness 23_fullymasked_qk_matmul_output_mode3_zero
    24_fullymasked_qk_matmul_output_mode3_zero 24_qk_matmul_output_mode3_softmax_precision 3d
    3d_attn_mask 3d_causal 3d_causal_bf16 3d_diff_heads_sizes 3d_diff_heads_sizes_attn_mask
    3d_diff_heads_sizes_causal 3d_diff_heads_sizes_scaled 3d_diff_heads_sizes_softcap
    3d_local_window 3d_scaled 3d_softcap 3d_transpose_verification 4d 4d_attn_mask
    4d_attn_mask_3d 4d_attn_mask_3d_causal 4d_attn_mask_4d 4d_attn_mask_4d_causal
    4d_attn_mask_bool 4d_attn_mask_bool_4d 4d_attn_mask_causal_bf16 4d_causal 4d_causal_bf16
    4d_causal_fp16 4d_diff_heads_sizes 4d_diff_heads_sizes_attn_mask 4d_diff_heads_sizes_causal
    4d_diff_heads_sizes_scaled 4d_diff_heads_sizes_softcap 4d_fp16 4d_scaled 4d_softcap
    4d_softcap_neginf_mask 4d_softcap_neginf_mask_poison 4d_with_qk_matmul
    4d_with_qk_matmul_bias 4d_with_qk_matmul_softcap 4d_with_qk_matmul_softmax
    bidirectional_window causal_boolmask_nan_robustness local_window local_window_default
    local_window_rank1_boolean_mask
""".split()

# A cache of keys of which only the first are filled. No encoder has one, but what is not filled
# is padding, so these run as well.
FILLED = """
    4d_causal_nonpad_attn_mask_composition 4d_causal_nonpad_batch_prefill
    4d_causal_nonpad_continued_prefill 4d_causal_nonpad_negative_offset_structural_empty
    4d_causal_padded_kv_bf16 4d_diff_heads_mask4d_padded_kv 4d_padded_kv_bf16
    local_window_ext_cache_float16_mask local_window_ext_cache_rank2_mask
    local_window_ext_cache_rank3_head_mask local_window_ext_cache_rank4_batch_mask
""".split()

# The cases that are not run, under the reason why.
EXCLUDED = {
    "keys and values of earlier calls are joined on: decoding": """
        3d_diff_heads_with_past_and_present 3d_gqa_with_past_and_present
        3d_with_past_and_present 3d_with_past_and_present_qk_matmul
        3d_with_past_and_present_qk_matmul_bias 3d_with_past_and_present_qk_matmul_softcap
        3d_with_past_and_present_qk_matmul_softmax 4d_causal_with_past_and_present
        4d_diff_heads_with_past_and_present 4d_diff_heads_with_past_and_present_mask3d
        4d_diff_heads_with_past_and_present_mask4d 4d_gqa_with_past_and_present
        4d_gqa_with_past_and_present_fp16 4d_with_past_and_present
        4d_with_past_and_present_qk_matmul 4d_with_past_and_present_qk_matmul_bias
        4d_with_past_and_present_qk_matmul_bias_3d_mask
        4d_with_past_and_present_qk_matmul_bias_3d_mask_causal
        4d_with_past_and_present_qk_matmul_bias_4d_mask
        4d_with_past_and_present_qk_matmul_bias_4d_mask_causal local_window_with_past
    """.split(),
    "several heads share one of several key heads: no encoder family does": """
        3d_gqa 3d_gqa_attn_mask 3d_gqa_causal 3d_gqa_scaled 3d_gqa_softcap 4d_gqa
        4d_gqa_attn_mask 4d_gqa_causal 4d_gqa_causal_nonpad_decode
        4d_gqa_causal_nonpad_decode_fp16 4d_gqa_scaled 4d_gqa_softcap
        local_window_gqa_rank4_mask
    """.split(),
}


def numbers(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(expected: Tensor, actual: Tensor, tolerance: float = CLOSE) -> None:
    """Nothing differs by more than the tolerance, absolute; NaN is never the same."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# The arithmetic by hand


def test_a_row_of_shares_is_a_mix_of_values() -> None:
    """Z_well = 0.6 V_All + 0.4 V_well, and what has no share adds nothing, not even NaN."""
    value = torch.tensor([[10.0, 0.0, 3.0], [NAN, INF, -INF], [0.0, 10.0, 3.0]])

    well = mix_values(torch.tensor([[0.6, 0.0, 0.4]]), value)

    assert torch.tensor([[6.0, 4.0]]).equal(well[:, :2])  # no sum is rounded in these two
    same(torch.tensor([[6.0, 4.0, 3.0]]), well, 1e-6)


def test_a_row_with_one_share_is_that_value() -> None:
    """Z_it = V_dog, to the bit."""
    value = numbers(KEYS, D_V, seed=0)

    assert value[[4]].equal(mix_values(torch.eye(KEYS)[[4]], value))


def test_shares_given_as_logarithms_come_back() -> None:
    """softmax(0 + log p) = p: scores of 0 and a bias are a way to give probabilities."""
    shares = torch.tensor([[0.6, 0.0, 0.4]])
    nothing, value = torch.zeros(1, 1, 2), torch.tensor([[[10.0], [NAN], [20.0]]])

    mixed, probabilities = attend(nothing, torch.zeros(1, 3, 2), value, bias=shares.log())

    same(shares[None], probabilities, 1e-7)
    same(torch.tensor([[[14.0]]]), mixed, 1e-5)


def test_scores_are_products_over_the_root_of_d_k() -> None:
    """1 * 3 + 2 * 4 + 2 * 1 + 0 * 9 = 13, over sqrt(4)."""
    query, key = torch.tensor([[1.0, 2.0, 2.0, 0.0]]), torch.tensor([[3.0, 4.0, 1.0, 9.0]])

    same(torch.tensor([[6.5]]), score_keys(query, key))
    same(torch.tensor([[1.3]]), score_keys(query, key, scale=0.1))


# What is hidden


def parts() -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with a different prime on every axis."""
    query = numbers(BATCH, HEADS, QUERIES, D_K, seed=1)
    return query, numbers(BATCH, HEADS, KEYS, D_K, seed=2), numbers(BATCH, HEADS, KEYS, D_V, seed=3)


def test_keys_may_be_narrower_than_values() -> None:
    """d_k scores, d_v is mixed; every row of probabilities sums to 1."""
    query, key, value = parts()

    mixed, probabilities = attend(query, key, value)

    assert (BATCH, HEADS, QUERIES, D_V) == mixed.shape
    same(torch.ones(BATCH, HEADS, QUERIES), probabilities.sum(-1), 1e-6)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    same(expected, mixed)


@pytest.mark.parametrize("how", ["keep", "bias"])
def test_a_row_without_a_key_is_zero(how: str) -> None:
    """In the map and in what is mixed, and in no other row."""
    keep = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    keep[3] = False
    hide = {
        "keep": {"keep": keep},
        "bias": {"bias": torch.zeros(QUERIES, KEYS).masked_fill(~keep, -INF)},
    }[how]

    mixed, probabilities = attend(*parts(), **hide)

    empty = torch.tensor([False, False, False, True, False])
    assert (empty == (probabilities == 0).all(-1)).all()
    assert (empty == (mixed == 0).all(-1)).all()
    same((~empty).float().expand(BATCH, HEADS, QUERIES), probabilities.sum(-1), 1e-6)


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("how", ["keep", "bias"])
def test_what_is_hidden_changes_no_bit(how: str, poison: float) -> None:
    """NaN and infinity in hidden keys, values and biases leave every row as zeros there do."""
    keep = numbers(BATCH, 1, 1, KEYS, seed=4) > 0

    def answer(filling: float) -> Attended:
        query, key, value = parts()
        hidden = ~keep.transpose(2, 3)
        key, value = key.masked_fill(hidden, filling), value.masked_fill(hidden, filling)
        if how == "keep":
            bias = torch.zeros(1).where(keep, filling)
            return attend(query, key, value, keep=keep, bias=bias)
        return attend(query, key, value, bias=torch.zeros(1).where(keep, -INF))

    clean, poisoned = answer(0.0), answer(poison)

    assert 0 < keep.sum() < keep.numel()
    assert clean.mixed.isfinite().all()
    assert clean.mixed.equal(poisoned.mixed)
    assert clean.probabilities.equal(poisoned.probabilities)


def test_however_badly_a_key_fits_a_hidden_one_fits_worse() -> None:
    """Hidden is not a large negative score."""
    scores = torch.tensor([[-1e30, -INF, -1e30, 1e30]])

    probabilities = attention_probabilities(scores, keep=torch.tensor([True, True, True, False]))

    assert torch.tensor([[0.5, 0.0, 0.5, 0.0]]).equal(probabilities)


def test_what_one_query_may_not_see_poisons_only_those_that_may() -> None:
    """A NaN reaches the queries that look at it, in its own channel, and no other."""
    query, key, value = parts()
    clean = attend(query, key, value, window=(None, 0)).mixed
    value[:, :, 2, 5] = NAN

    mixed = attend(query, key, value, window=(None, 0)).mixed

    reached = torch.zeros_like(mixed, dtype=torch.bool)
    reached[:, :, 2:, 5] = True
    assert reached.equal(mixed.isnan())
    assert clean[~reached].equal(mixed[~reached])


def test_a_mask_of_numbers_is_refused() -> None:
    """Ones and zeros say nothing about which of them hides."""
    with pytest.raises(ValueError, match=r"keep is torch\.int64, it must be torch\.bool"):
        attend(*parts(), keep=torch.ones(KEYS, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_arithmetic_is_at_least_float32(dtype: torch.dtype) -> None:
    """Half-precision inputs lose nothing until the mixed values are rounded back."""
    rounded = [part.to(dtype) for part in parts()]

    mixed, probabilities = attend(*rounded)

    exact = attend(*(part.double() for part in rounded))
    assert dtype == mixed.dtype
    same(exact.probabilities, probabilities.double(), 1e-6)
    same(exact.mixed.to(dtype).double(), mixed.double(), torch.finfo(dtype).eps)
    assert exact.mixed.dtype == torch.float64


# With weights


def affine(outputs: int, inputs: int, seed: int, biased: bool = True) -> Affine:
    """A projection that keeps the size of what it projects."""
    weight = numbers(outputs, inputs, seed=seed) / inputs**0.5
    return weight, numbers(outputs, seed=seed + 100) if biased else None


def layer(biased: bool = True, rotation: Rotation | None = None) -> MultiHead:
    """A layer from rows of WIDTH to rows of WIDTH_KEY."""
    return MultiHead(
        affine(HEADS * D_K, WIDTH, 10, biased),
        affine(HEADS * D_K, WIDTH_KEY, 11, biased),
        affine(HEADS * D_V, WIDTH_KEY, 12, biased),
        affine(WIDTH_OUT, HEADS * D_V, 13, biased),
        HEADS,
        rotation=rotation,
    )


ROWS, KEY_ROWS = numbers(BATCH, QUERIES, WIDTH, seed=20), numbers(BATCH, KEYS, WIDTH_KEY, seed=21)


def test_the_output_is_the_sum_of_what_its_heads_add() -> None:
    """Concat(Z_0 .. Z_(h-1)) W^O = sum_i Z_i W_i^O, each Z_i from its own three matrices."""
    cross = layer(biased=False)
    total = torch.zeros(BATCH, QUERIES, WIDTH_OUT)
    maps = []
    for i in range(HEADS):
        head = cross.head(i)
        assert (WIDTH, D_K) == head.query.shape and (WIDTH_KEY, D_K) == head.key.shape
        assert (WIDTH_KEY, D_V) == head.value.shape and (D_V, WIDTH_OUT) == head.output.shape
        z, p = attend(ROWS @ head.query, KEY_ROWS @ head.key, KEY_ROWS @ head.value)
        total += z @ head.output
        maps.append(p)

    output, probabilities = cross(ROWS, KEY_ROWS)

    same(output, total)
    same(probabilities, torch.stack(maps, 1))


def test_rotation_is_multiplication_by_a_phase() -> None:
    """Queries and keys as complex numbers, turned by e^(i position rate), each from 0 on."""
    turned = layer(
        biased=False, rotation=Rotation(Rope(theta=100.0), D_K, KEYS, torch.device("cpu"))
    )

    _, probabilities = turned(ROWS, KEY_ROWS)

    def phased(rows: Tensor, weight: Tensor) -> Tensor:
        left, right = (rows @ weight.T).unflatten(-1, (HEADS, D_K)).transpose(1, 2).chunk(2, -1)
        angle = torch.arange(rows.shape[1])[:, None] * torch.tensor([1.0, 0.1])
        return torch.complex(left, right) * torch.polar(torch.ones_like(angle), angle)

    q, k = phased(ROWS, turned.query[0]), phased(KEY_ROWS, turned.key[0])
    scores = (q @ k.conj().transpose(2, 3)).real / D_K**0.5
    same(scores.softmax(-1), probabilities)


def test_a_relative_bias_is_a_bias() -> None:
    """One number per head and distance: each head's map is shifted by its own."""
    table = 9 * numbers(32, HEADS, seed=30)  # a row for each bucket
    square = MultiHead(*(affine(6, 6, seed) for seed in range(4)), HEADS)
    rows = numbers(QUERIES, 6, seed=31)
    relative = table[distance_buckets(QUERIES, 32, rows.device)].permute(2, 0, 1)

    _, probabilities = square(rows, bias=relative)

    plain = square(rows)[1].log()
    ahead = [[bucket(j - i) for j in range(QUERIES)] for i in range(QUERIES)]
    same((plain + table.T[:, ahead]).softmax(-1), probabilities)


def bucket(ahead: int) -> int:
    """DistanceBias below 8 have a bucket each; the second 16 are for keys after the query."""
    return abs(ahead) + 16 * (ahead > 0)


def test_heads_must_divide_the_channels() -> None:
    """Both numbers are named."""
    with pytest.raises(ValueError, match=r"heads \(4\) must divide heads \* d_v \(6\)"):
        MultiHead(affine(8, 5, 0), affine(8, 5, 1), affine(6, 5, 2), affine(5, 6, 3), 4)


# Against torch.nn.MultiheadAttention


class Trial(NamedTuple):
    """One random layer of torch's, what it is given, and the same for ours."""

    torchs: torch.nn.MultiheadAttention
    rows: tuple[Tensor, Tensor, Tensor]
    masks: dict[str, Tensor]  # True hides
    ours: MultiHead
    keep: Tensor  # True may be seen
    bias: Tensor | None


def trial(random: np.random.Generator) -> Trial:
    """Sizes, widths, biases and masks as they come."""
    batch, heads, head, queries, keys = (int(random.integers(1, top)) for top in (5, 6, 9, 12, 12))
    width = heads * head
    kdim, vdim = (int(random.integers(1, 14)) if random.random() < 0.5 else width for _ in "kv")
    torchs = torch.nn.MultiheadAttention(
        width, heads, bias=random.random() < 0.5, kdim=kdim, vdim=vdim, batch_first=True
    ).requires_grad_(False)
    for parameter in torchs.parameters():
        # as a layer begins or was taught: outputs as large as inputs
        parameter.copy_(normal(random, *parameter.shape) / parameter.shape[-1] ** 0.5)

    rows = tuple(
        normal(random, batch, *shape) for shape in ((queries, width), (keys, kdim), (keys, vdim))
    )
    keep = torch.ones(batch, 1, 1, keys, dtype=torch.bool)
    masks: dict[str, Tensor] = {}
    bias = None
    if random.random() < 0.5:
        keep = torch.tensor(random.random((batch, 1, 1, keys)) < 0.8)
        masks["key_padding_mask"] = ~keep[:, 0, 0]
    kind = random.choice(["none", "bool", "float"])
    each = (batch, heads, queries, keys) if random.random() < 0.5 else (queries, keys)
    if kind == "bool":
        seen = torch.tensor(random.random(each) < 0.8)
        keep = keep & seen
        masks["attn_mask"] = ~seen.view(-1, queries, keys) if len(each) == 4 else ~seen
    elif kind == "float":
        bias = normal(random, *each)
        masks["attn_mask"] = bias.view(-1, queries, keys) if len(each) == 4 else bias
        if "key_padding_mask" in masks:  # torch wants both masks of one kind
            padding = masks["key_padding_mask"]
            masks["key_padding_mask"] = torch.zeros(padding.shape).masked_fill(padding, -INF)
    return Trial(torchs, rows, masks, copied(torchs), keep, bias)


def normal(random: np.random.Generator, *shape: int) -> Tensor:
    """The next numbers of a stream."""
    return torch.tensor(random.standard_normal(shape), dtype=torch.float32)


def copied(torchs: torch.nn.MultiheadAttention) -> MultiHead:
    """Ours with the weights of torch's, which keeps them in one of two ways."""
    if torchs.in_proj_weight is None:
        weights = (torchs.q_proj_weight, torchs.k_proj_weight, torchs.v_proj_weight)
    else:
        weights = torchs.in_proj_weight.chunk(3)
    fused = torchs.in_proj_bias
    biases = (None, None, None) if fused is None else fused.chunk(3)
    output = torchs.out_proj.weight, torchs.out_proj.bias
    return MultiHead(*zip(weights, biases, strict=True), output, torchs.num_heads)


def test_random_layers_agree_with_torchs_own() -> None:
    """Outputs and maps per head; where torch's row is NaN for want of a key, ours is 0."""
    random = np.random.default_rng(0)
    furthest, empty = 0.0, 0
    for number in range(FUZZED):
        torchs, rows, masks, ours, keep, bias = trial(random)
        wanted, maps = torchs(*rows, **masks, average_attn_weights=False)

        output, probabilities = ours(*rows, keep=keep, bias=bias)

        without = maps.isnan()
        assert (probabilities[without] == 0).all() and output.isfinite().all(), number
        known = ~without.any(-1).any(1)  # queries of which every head has a key
        error = (wanted - output)[known].abs().amax().item() if known.any() else 0.0
        furthest = max(furthest, error, (maps.nan_to_num(0) - probabilities).abs().max().item())
        assert furthest <= CLOSE, number
        empty += int(without.any())
    assert 0 < empty < FUZZED / 2  # both kinds of row were there to compare


# Against ONNX's operator


@cache
def cases() -> dict[str, Any]:
    """ONNX's node cases of Attention by name, less those of the operator written out."""
    # only this operator: collect_testcases() imports all of them first, which takes seconds
    importlib.import_module("onnx.backend.test.case.node.attention")
    found = {case.name: case for case in onnx_nodes._NodeTestCases}
    prefix = "test_attention_"
    return {
        name.removeprefix(prefix): case
        for name, case in found.items()
        if name.startswith(prefix) and not name.endswith("_expanded")
    }


def tensor(array: Any) -> Tensor:
    """The array in the same dtype; numpy has no bfloat16 that torch would take."""
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32)).bfloat16()
    return torch.tensor(array)


class Operator(NamedTuple):
    """One node with what it is given and what it must answer, by ONNX's names."""

    options: dict[str, Any]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


def operator(name: str) -> Operator:
    """A case, as tensors by their names."""
    case = cases()[name]
    (node,), ((inputs, outputs),) = case.model.graph.node, case.data_sets
    options = {option.name: get_attribute_value(option) for option in node.attribute}
    named = (
        {key: tensor(array) for key, array in zip(filter(None, keys), arrays, strict=True)}
        for keys, arrays in ((node.input, inputs), (node.output, outputs))
    )
    return Operator(options, *named)


def answer(asked: Operator) -> dict[str, Tensor]:
    """What our functions make of ONNX's inputs and options."""
    options, inputs = asked.options, asked.inputs
    flat = inputs["Q"].ndim == 3  # (batch, tokens, heads * head)
    query, key, value = inputs["Q"], inputs["K"], inputs["V"]
    if flat:
        counts = options["q_num_heads"], options["kv_num_heads"], options["kv_num_heads"]
        query, key, value = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part, heads in zip((query, key, value), counts, strict=True)
        )
    keep, bias, window = hidden(asked, query.shape[-2], key.shape[-2])
    scale, softcap = options.get("scale"), options.get("softcap") or None

    mixed, probabilities = attend(
        query,
        key,
        value,
        scale=scale,
        keep=keep,
        bias=bias,
        window=window,
        softcap=softcap,
    )

    mode = options.get("qk_matmul_output_mode", 0)
    scores = capped(score_keys(query, key, scale=scale), softcap if mode else None)
    shown = probabilities if mode == 3 else scores + bias if mode == 2 else scores
    return {
        "Y": mixed.transpose(1, 2).flatten(2) if flat else mixed,
        "qk_matmul_output": shown.to(query.dtype),
    }


def hidden(asked: Operator, queries: int, keys: int) -> tuple[Tensor, Tensor | None, Any]:
    """ONNX's ways to hide a key, as our keep, bias and window."""
    options, inputs = asked.options, asked.inputs
    keep, bias = torch.ones(keys, dtype=torch.bool), None
    if (mask := inputs.get("attn_mask")) is not None:
        short = (0, keys - mask.shape[-1])  # keys past the mask's end are hidden
        if mask.dtype == torch.bool:
            keep = torch.nn.functional.pad(mask, short, value=False)
        else:
            bias = torch.nn.functional.pad(mask, short, value=-INF)
    left, right = (options.get(f"{side}_window_size", -1) for side in ("left", "right"))
    window = left if left >= 0 else None, right if right >= 0 else None
    if options.get("is_causal"):
        window = window[0], 0
    if (filled := inputs.get("nonpad_kv_seqlen")) is None:
        return keep, bias, window
    filled = filled.view(-1, 1, 1, 1)
    keep = keep & (torch.arange(keys) < filled)
    # the last query stands at the last filled key
    ahead = torch.arange(keys) - (torch.arange(queries)[:, None] + filled - queries)
    for reach, distance in zip(window, (-ahead, ahead), strict=True):
        if reach is not None:
            keep = keep & (distance <= reach)
    return keep, bias, None


def kind(asked: Operator) -> str:
    """Which of the lists above a case belongs to, by what it holds."""
    decoding, grouped = EXCLUDED
    inputs, options = asked.inputs, asked.options
    if "past_key" in inputs:
        return decoding
    heads = options.get("q_num_heads", inputs["Q"].shape[1])
    if options.get("kv_num_heads", inputs["K"].shape[1]) not in (1, heads):
        return grouped
    return "filled" if "nonpad_kv_seqlen" in inputs else "encoder"


def test_every_case_of_onnx_is_listed_and_rightly_so() -> None:
    """48 of an encoder, 11 with a filled part, 34 not run with the reason: no case is missing."""
    listed = {"encoder": ENCODER, "filled": FILLED, **EXCLUDED}

    assert [48, 11, 21, 13] == [len(names) for names in listed.values()]
    assert {name: group for group, names in listed.items() for name in names} == {
        name: kind(operator(name)) for name in cases()
    }


@pytest.mark.parametrize("name", ENCODER + FILLED)
def test_a_case_of_onnx_is_answered(name: str) -> None:
    """Every output at the case's own tolerance; bfloat16 at that of ONNX's own test runner."""
    case, asked = cases()[name], operator(name)

    given = answer(asked)

    for output, expected in asked.outputs.items():
        assert (expected.dtype, expected.shape) == (given[output].dtype, given[output].shape)
        bfloat16 = expected.dtype == torch.bfloat16
        rtol = max(case.rtol, 2**-6) if bfloat16 else case.rtol
        torch.testing.assert_close(given[output], expected, rtol=rtol, atol=case.atol)
