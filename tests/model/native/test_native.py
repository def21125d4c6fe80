"""model/native/: the compiled operator gives the loop's bits, for every family, or does not run."""

import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from model import kernels
from model.attention.attention import TILE_QUERIES
from model.attention.positions import Rope
from model.config import Activation, EncoderConfig, PoolingMode
from model.encoder import Encoded, Encoder
from model.kernels import Kernels
from model.loading.assembly import build_encoder, expected_shapes
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.native import agreement, library, operator_module
from model.native.stack import NativeStack, calls_same_kernels
from model.packing import Packed, Sequence, pack_sequences
from model.pooling import Pooling, pool_each

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]
NOTHING: Set[int] = frozenset()
LAYERS, HEADS, HEAD = 2, 3, 14  # an even head, which rotation turns in halves
WINDOW = 5
LONG = 2 * TILE_QUERIES + 3
NAN = 1e30  # stands for any NaN, of which there are many; no state comes near it

BERT = EncoderConfig(
    family="bert",
    vocabulary=97,
    width=HEADS * HEAD,
    layers=LAYERS,
    heads=HEADS,
    feed_forward=53,
    max_tokens=LONG,
    norm_eps=1e-12,
    embedding_width=HEADS * HEAD,
    types=3,
)
ROTARY: dict[str, Any] = {"positions": "rotary", "ropes": (Rope(theta=1e4),) * LAYERS}
# Heads that do not divide the width, of which three share keys
DECODER = replace(
    BERT,
    **ROTARY,
    heads=6,
    key_heads=2,
    head_size=HEAD,
    types=0,
    norm_eps=1e-6,
    embedding_norm=False,
    pre_norm=True,
    first_norm=True,
    norm="rms",
    biases=(),
    norm_bias=False,
    activation="silu",
    gated=True,
)
QWEN3 = replace(DECODER, head_norm=True, causal=True)
GEMMA = replace(
    DECODER, activation="gelu_tanh", head_norm=True, block_norm=True, windows=(WINDOW, None)
)
FAMILIES = {
    "post-norm": BERT,
    "narrow tables": replace(BERT, embedding_width=19),
    "task types": replace(BERT, kinds=3),
    "one layer for all": replace(BERT, shared=True),
    "offset positions": replace(BERT, position_offset=2, pad=1, types=1),
    "distances": replace(BERT, buckets=32, types=0),
    "sinusoids": replace(BERT, positions="sinusoidal", embedding_norm=False, types=0),
    "post-norm, gated, rotary": replace(BERT, **ROTARY, gated=True, biases=()),
    "post-norm, gates without biases": replace(
        BERT, **ROTARY, gated=True, biases=("query", "key", "value", "output", "down")
    ),
    "post-norm, rotary": replace(BERT, **ROTARY),
    "pre-norm": replace(BERT, pre_norm=True),
    "pre-norm, gated, rotary, windows": replace(
        BERT,
        **ROTARY,
        pre_norm=True,
        gated=True,
        biases=(),
        norm_bias=False,
        types=0,
        windows=(None, WINDOW),
    ),
    "windows and distances": replace(BERT, windows=(WINDOW, None), buckets=32),
    "shared keys": DECODER,
    "shared keys, causal, norms of heads": QWEN3,
    "one head of keys, causal": replace(QWEN3, key_heads=1, biases=("query", "key", "value")),
    "shared keys, windows, norms on both sides": GEMMA,
    "shared keys, causal windows": replace(GEMMA, causal=True, score_width=7.0),
    "shared keys and distances": replace(
        DECODER, positions="relative", ropes=(), buckets=32, causal=True
    ),
    "LayerNorms of heads": replace(QWEN3, norm="layer", norm_bias=True),
    "one head of 80": replace(BERT, heads=1, head_size=80),
    "heads of 10": replace(BERT, head_size=10),
    "heads of 24": replace(BERT, **ROTARY, head_size=24),
    "heads of 40": replace(BERT, buckets=32, head_size=40),
} | {
    f"{activation}, {'gated' if gated else 'plain'}": replace(
        BERT, activation=activation, gated=gated
    )
    for activation in get_args(Activation)
    for gated in (False, True)
}
# The same with widths that oneDNN lays in panels, for AVX2 too (not 48), and a product that it sums
# up in two parts
FAMILIES |= {
    f"{name}, in panels": replace(
        config,
        width=HEADS * 32,
        head_size=32 if config.head_size == HEAD else config.head_size,
        # whole vectors, as our SiLU needs them; the others have it of torch
        feed_forward=1024 + (96 if config.gated else 48),
        embedding_width=HEADS * 32 if config.embedding_width == config.width else 32,
    )
    for name, config in FAMILIES.items()
}
# Each by its own widths or by those in turn; `make prove` has both
HALF = len(FAMILIES) // 2
NAMES = [
    pytest.param(name, marks=() if place % 2 == place // HALF else pytest.mark.prove)
    for place, name in enumerate(FAMILIES)
]


def made(config: EncoderConfig, way: Kernels | None = None) -> Encoder:
    """An encoder of random weights, every bias and norm included."""
    chance = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=chance) * 0.1 + name.endswith("norm.weight")
        for name, shape in expected_shapes(config).items()
    }
    way = way or kernels.choose_kernels(CPU, torch.float32)
    return build_encoder(config, weights.__getitem__, CPU, torch.float32, way)


needs_half = pytest.mark.skipif(
    not kernels.find_attention(half=True), reason="needs a processor with avx512_bf16"
)


def batches(config: EncoderConfig) -> Iterator[list[Sequence]]:
    """Short ones alone, many in company, windows of several tiles, vectors, types, gates."""
    chance = random.Random(0)

    def drawn(length: int, **more: Any) -> Sequence:
        ids = [chance.randrange(config.vocabulary) for _ in range(length)]
        types = [chance.randrange(max(1, config.types)) for _ in range(length)]
        return Sequence(ids, types, **more)

    yield from ([drawn(length)] for length in (1, 2, WINDOW + 1, WINDOW + 2, 17, 64, 65))
    yield [drawn(length) for length in (TILE_QUERIES, LONG, 7, 1, 7, TILE_QUERIES + 1, 13, 7)]
    vectors = torch.randn(11, config.embedding_width, generator=torch.Generator().manual_seed(1))
    last = config.heads - 1
    gates = {0: {last: 0.0, 0: 0.37}, LAYERS - 1: {min(1, last): 3.0}}
    longer = drawn(TILE_QUERIES + 3, gates=gates)
    yield [drawn(5), Sequence(embeddings=vectors), longer, drawn(5, gates=gates)]
    yield [drawn(13), drawn(13, unseen=7), drawn(13, unseen=5), drawn(13), drawn(13, unseen=7)]
    yield [Sequence(embeddings=torch.full_like(vectors, torch.nan)), drawn(3)]


def same(one: Encoded, other: Encoded) -> bool:
    """Whether two passes left the same bits, and NaN in the same places, under the same names."""
    kept = [(sorted(each.hidden), sorted(each.traces)) for each in (one, other)]
    bits = (
        [
            t.nan_to_num(NAN, math.inf, -math.inf).view(torch.int32)
            for t in agreement.kept_tensors(each)
        ]
        for each in (one, other)
    )
    pairs = zip(*bits, strict=True)
    return kept[0] == kept[1] and all(torch.equal(a, b) for a, b in pairs)


def test_biases_of_distance_are_kept_and_cut_to_each_length() -> None:
    """After a longer batch a shorter one's are the bits that a new encoder makes."""
    longer, shorter = [Sequence([5] * LONG)], [Sequence([5] * 7), Sequence([5] * 13)]
    used, fresh = made(FAMILIES["distances"]), made(FAMILIES["distances"])
    used.biases(used.pack(longer))
    kept = used._widest

    found, expected = used.biases(used.pack(shorter)), fresh.biases(fresh.pack(shorter))

    pairs = zip(found, expected, strict=True)
    assert [bias.shape for bias in found if bias is not None] == [(HEADS, 7, 7), (HEADS, 13, 13)]
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in pairs)
    assert kept is not None and kept.shape == (HEADS, LONG, LONG)
    kept.zero_()
    assert not any(bias.any() for bias in used.biases(used.pack(shorter)) if bias is not None)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_the_loops_bits(
    name: str, stacked: Callable[[Encoder], NativeStack]
) -> None:
    """The last state, each hidden state and trace, and one of each; finite or not."""
    encoder = made(FAMILIES[name])
    assert calls_same_kernels(encoder.kernels)
    native, every = stacked(encoder), frozenset(range(LAYERS))

    for batch in batches(encoder.config):
        packed = encoder.pack(batch)
        own = pack_sequences(batch, CPU, encoder.config.pad, native.unpadded_rows)
        whole = encoder.run_layers(packed, every | {LAYERS}, every)
        some = [(NOTHING, NOTHING), ({1}, {LAYERS - 1})] if len(packed.token_ids) < LONG else []
        for hidden, traces in (*some, (every | {LAYERS}, every)):
            found = native(packed, hidden, traces)
            expected = replace(
                whole,
                hidden={layer: whole.hidden[layer] for layer in hidden},
                traces={layer: whole.traces[layer] for layer in traces},
            )
            assert same(expected, found)
            assert found.finite is bool(expected.last.isfinite().all())
        found = native(own, every | {LAYERS}, every)
        pairs = agreement.pair_tensors(found, whole)
        assert not found.finite or all(torch.equal(few, many) for few, many in pairs)


@pytest.mark.parametrize(
    "name",
    [
        "post-norm",
        "pre-norm, gated, rotary, windows",
        "shared keys, causal, norms of heads, in panels",
        "gelu_tanh, plain",
        "relu, plain",
    ],
)
def test_some_families_have_the_loops_bits_by_arm64s_kernels(
    name: str, stacked: Callable[[Encoder], NativeStack]
) -> None:
    """Which multiply with any processor's vectors; tests/arm64 has them all on an arm64."""
    encoder = made(FAMILIES[name], kernels.NEON)

    assert calls_same_kernels(encoder.kernels)
    assert agreement.agrees_with_loop(encoder, stacked(encoder))


@needs_half
@pytest.mark.parametrize("way", [kernels.PANELS, kernels.TILES], ids=lambda way: way.name)
@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_the_loops_bits_in_bfloat16(
    name: str, way: Kernels, stacked: Callable[[Encoder], NativeStack]
) -> None:
    """Its states, traces and vectors, whichever way this processor's bfloat16 takes."""
    encoder = made(FAMILIES[name], way)

    assert calls_same_kernels(encoder.kernels)
    assert agreement.agrees_with_loop(encoder, stacked(encoder))


@pytest.mark.parametrize("cores", [2, 3])
def test_on_several_cores_too(
    stacked: Callable[[Encoder], NativeStack], threads: Callable[[int], None], cores: int
) -> None:
    """What a lone request has."""
    encoder = made(BERT)
    threads(cores)

    assert agreement.agrees_with_loop(encoder, stacked(encoder))


def test_a_map_is_made_of_its_trace(
    model: Model, stacked: Callable[[Encoder], NativeStack]
) -> None:
    """Whatever reads a trace cannot tell who left it."""
    packed = model.encoder.pack([Sequence([101, 7592, 102]), Sequence([101, 102])])
    native, wanted = stacked(model.encoder), (NOTHING, frozenset({4}))

    found, expected = (
        maps.full_maps(MapReader(run(packed, *wanted).traces[4], packed.rows(0), [3, 11]))
        for run in (native, model.encoder.run_layers)
    )

    assert torch.equal(found, expected)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dimensions", [None, 5])
def test_every_vector_has_the_same_bits(
    normalize: bool, dimensions: int | None, stacked: Callable[[Encoder], NativeStack]
) -> None:
    """By each mode, and by several end to end; of nothing but zeros too."""
    native = stacked(made(BERT))
    tokens = torch.randn(29, 23, generator=torch.Generator().manual_seed(2))
    tokens[:3] = 0
    rows = [slice(0, 3), slice(3, 4), slice(4, 29)]

    for modes in (*((mode,) for mode in get_args(PoolingMode)), ("cls", "max", "mean")):
        how = Pooling(modes, normalize, dimensions)
        assert torch.equal(native.pool(tokens, rows, how), pool_each(tokens, rows, how))


SWAPPED = {
    "the order of layers": lambda encoder: encoder.layers.reverse(),
    "one weight": lambda encoder: encoder.layers[1].down.bias.add_(1e-6),
    "the scale": lambda encoder: setattr(encoder.layers[0].attention, "scale", 0.2673),
}


@pytest.mark.parametrize("spoil", SWAPPED.values(), ids=SWAPPED)
def test_what_differs_does_not_agree(
    spoil: Callable[[Encoder], object], stacked: Callable[[Encoder], NativeStack]
) -> None:
    """The negative control: an operator that has something else than the loop."""
    encoder, other = made(BERT), made(BERT)
    assert agreement.agrees_with_loop(encoder, stacked(other))

    spoil(other)

    assert not agreement.agrees_with_loop(encoder, stacked(other))


def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(
    model: Model, sequences: list[list[int]], stacked: Callable[[Encoder], NativeStack]
) -> None:
    """The promise, kept by the operator itself."""
    native, wanted = stacked(model.encoder), (NOTHING, NOTHING)
    short = [Sequence(ids) for ids in sequences if len(ids) < 40]
    alone = [native(model.encoder.pack([one]), *wanted).last[: len(one)] for one in short]

    packed = model.encoder.pack(short)
    together = native(packed, *wanted).last

    pairs = ((together[packed.rows(i)], one) for i, one in enumerate(alone))
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["shared keys", "shared keys, causal, norms of heads"])
def test_a_decoder_has_the_same_bits_alone_in_any_batch_and_on_any_cores(
    name: str, stacked: Callable[[Encoder], NativeStack], threads: Callable[[int], None]
) -> None:
    """Of every length up to 70, at another place, with more or fewer of its own length."""
    native = stacked(made(FAMILIES[f"{name}, in panels"]))
    chance = random.Random(5)
    drawn = [Sequence([chance.randrange(97) for _ in range(length)]) for length in range(1, 71)]
    each = [pack_sequences([one], CPU, unpadded_rows=native.unpadded_rows) for one in drawn]
    alone = [native(one, NOTHING, NOTHING).last[one.rows(0)] for one in each]

    for cores in (1, 2):
        threads(cores)
        order = chance.sample(range(70), 70) + chance.sample(range(9), 4)
        packed = pack_sequences([drawn[i] for i in order], CPU, unpadded_rows=native.unpadded_rows)
        together = native(packed, NOTHING, NOTHING).last
        for place, i in enumerate(order):
            assert torch.equal(together[packed.rows(place)], alone[i]), (cores, i + 1)
        some = native(each[-1], NOTHING, NOTHING).last
        assert torch.equal(some[each[-1].rows(0)], alone[-1])


@pytest.mark.parametrize(
    ("activation", "inner", "lengths"),
    [
        # just too many for one thread; parts of which end within a row
        ("gelu", 1104, (15, 103)),
        ("gelu_tanh", 1104, (15, 103)),
        ("silu", 1104, (15, 103)),
        ("silu", 1120, (15, 103)),
        ("gelu_tanh", 10240, (2, 3)),  # too many already of what is never parted
    ],
)
def test_gates_have_the_same_bits_on_any_cores(
    activation: Activation,
    inner: int,
    lengths: tuple[int, ...],
    stacked: Callable[[Encoder], NativeStack],
    threads: Callable[[int], None],
) -> None:
    """Loop and operator; torch would cut rows in places that follow from their number."""
    encoder = made(replace(FAMILIES[f"{activation}, gated, in panels"], feed_forward=inner))
    native = stacked(encoder)

    for tokens in lengths:
        sequence = [Sequence([i % 97 for i in range(tokens)])]
        packed, own = (
            pack_sequences(sequence, CPU, unpadded_rows=most) for most in (0, native.unpadded_rows)
        )
        threads(1)
        alone = encoder.run_layers(packed, NOTHING, NOTHING).last[:tokens]
        for cores in (2, 3, 5):
            threads(cores)
            for run, rows in ((encoder.run_layers, packed), (native, packed), (native, own)):
                assert torch.equal(run(rows, NOTHING, NOTHING).last[:tokens], alone), cores


LINEAR = "_linear_pointwise"
UNSEEN = ("native_layer_norm",)  # whose kernel is called directly
OTHERS = (*UNSEEN, "embedding")


def test_the_operator_runs_the_loops_kernels_and_no_other(
    short: Encoder, shortened: NativeStack
) -> None:
    """Linears and embeddings, as often as the loop, where there are many rows."""
    packed = short.pack([Sequence([101] * 512)] * 3)
    found, expected = ran(shortened, packed), ran(short.run_layers, packed)

    assert shortened.unpadded_rows < len(packed.token_ids)
    assert found == [name for name in expected if not name.endswith(UNSEEN)]
    assert len(expected) == 2 * (4 + 2) + 3 + 1


@pytest.fixture(scope="module")
def panels(model: Model, stacked: Callable[[Encoder], NativeStack]) -> None:
    """What lays weights out in panels; without AVX2 every linear takes the long way."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("there is no kernel for this processor")
    assert stacked(model.encoder).unpadded_rows


@pytest.mark.usefixtures("panels")
def test_fewer_rows_take_the_short_way_through_every_linear(
    short: Encoder, shortened: NativeStack
) -> None:
    """oneDNN describes no product."""
    packed = short.pack([Sequence([101] * 512)] * 2)

    found, expected = ran(shortened, packed), ran(short.run_layers, packed)

    assert shortened.unpadded_rows == len(packed.token_ids)
    assert found == [name for name in expected if not name.endswith((LINEAR, *UNSEEN))]
    assert len(expected) - len(found) == 2 * (4 + 2) + 1


@pytest.fixture(scope="module")
def short(model: Model) -> Encoder:
    """The bundled model's first two layers: every further one has the same products."""
    whole = model.encoder
    return Encoder(whole.config, whole.embeddings, whole.layers[:2])


@pytest.fixture(scope="module")
def shortened(short: Encoder, stacked: Callable[[Encoder], NativeStack]) -> NativeStack:
    """The operator with these layers, once for every number of rows."""
    return stacked(short)


@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize(
    "rows",
    [  # about the multiples of 16; `make prove` tries all between
        pytest.param(rows, marks=() if rows % 16 in (15, 0, 1) or rows < 8 else pytest.mark.prove)
        for rows in (*range(2, 70), 127, 128, 129, 500, 1024)
    ],
)
def test_any_number_of_rows_has_the_same_bits(
    rows: int, short: Encoder, shortened: NativeStack
) -> None:
    """Alone, or cut into pieces of the rows, as with the fill that the loop needs."""
    chance = random.Random(rows)
    lengths = [min(400, rows)] * (rows // 400 or 1)
    lengths += [rows - sum(lengths)] * (rows > sum(lengths))
    batch = [Sequence([chance.randrange(30522) for _ in range(length)]) for length in lengths]
    own = pack_sequences(batch, CPU, unpadded_rows=shortened.unpadded_rows)

    found = shortened(own, NOTHING, NOTHING).last

    assert len(own.token_ids) == rows
    expected = short.run_layers(pack_sequences(batch, CPU), NOTHING, NOTHING).last
    assert torch.equal(found, expected[:rows])


@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize(("width", "heads", "inner"), [(80, 5, 336), (96, 4, 3072)])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_a_panel_that_is_not_full_and_a_sum_in_parts_have_the_same_bits(
    width: int, heads: int, inner: int, activation: Any, stacked: Callable[[Encoder], NativeStack]
) -> None:
    """With one block of rows, two, three and more, among which the next panel is shared out."""
    sizes = {"width": width, "heads": heads, "feed_forward": inner, "embedding_width": width}
    encoder = made(replace(BERT, activation=activation, **sizes))
    native = stacked(encoder)

    assert native.unpadded_rows > 0
    for length in (2, 5, 7, 13, 19, 37, 200):
        batch = [Sequence([i % 97 for i in range(length)])]
        found = native(
            pack_sequences(batch, CPU, unpadded_rows=native.unpadded_rows), NOTHING, NOTHING
        ).last
        expected = encoder.run_layers(pack_sequences(batch, CPU), NOTHING, NOTHING).last
        assert torch.equal(found, expected[:length]), length


# Of any processor with AVX-512: the kernels of both, and a oneDNN that has another GELU than ours
LESSER = {
    "AVX2": ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
    "oneDNN for AVX2 alone": ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, True),
}
CHECK = "from tests.model.native.test_native import steps; print(*steps())"


def steps() -> Iterator[bool]:
    """Whether any number of rows is taken and a step is torch's, of an encoder and a decoder."""
    for family in ("post-norm", "shared keys, causal, norms of heads"):
        encoder = made(FAMILIES[f"{family}, in panels"])
        stack = NativeStack(encoder, library.load_operator())
        assert agreement.agrees_with_loop(encoder, stack)
        names = passed(stack, encoder.pack([Sequence([1, 2, 3])]))
        torchs = [name for name in names if name.endswith(("gelu", "gelu_", "silu", "rms_norm"))]
        yield from (stack.unpadded_rows > 0, len(torchs) > 0)


@pytest.mark.usefixtures("panels", "stacked")
def test_steps_are_ours_where_they_have_torchs_bits() -> None:
    """GELU, proven over all exponents; a decoder's norms and gates."""
    assert [*steps()] == [True, False, True, False]


@pytest.mark.prove
@pytest.mark.usefixtures("panels")
@pytest.mark.parametrize("processor", ["AVX2", "oneDNN for AVX2 alone"])
def test_a_lesser_processor_has_torchs_steps_where_ours_have_other_bits(processor: str) -> None:
    """GELU alone; a decoder's are the same on all processors."""
    variables, torchs = LESSER[processor]
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this processor cannot be taken for a lesser one")

    found = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout.split() == ["True", str(torchs), "True", "False"]


@pytest.mark.usefixtures("panels")
def test_a_width_that_is_laid_out_otherwise_is_filled_up_as_ever(
    stacked: Callable[[Encoder], NativeStack],
) -> None:
    """And what oneDNN computes together with its product in another way."""
    assert stacked(made(BERT)).unpadded_rows == 0
    assert stacked(made(FAMILIES["silu, plain, in panels"])).unpadded_rows == 0
    assert stacked(made(FAMILIES["silu, gated, in panels"])).unpadded_rows > 0


def ran(run: Callable[..., Encoded], packed: Packed) -> list[str]:
    """The large operators of a pass, in order."""
    return [name for name in passed(run, packed) if name.endswith((LINEAR, *OTHERS))]


def passed(run: Callable[..., Encoded], packed: Packed) -> list[str]:
    """All operators of a pass, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        run(packed, NOTHING, NOTHING)
    return [event.name for event in seen.events()]


def test_plain_kernels_keep_the_loop(plain: Model) -> None:
    """The operator calls oneDNN's alone."""
    assert not calls_same_kernels(plain.encoder.kernels)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([], "it is not built, and torch is"),
        (["forward_2_9_1_cpu", "forward_2_8_0"], "forward_2_8_0, forward_2_9_1_cpu alone is built"),
        ([operator_module(torch.__version__)], "torch cannot load forward_"),
    ],
    ids=["none", "another torch's", "a broken file"],
)
def test_what_is_not_this_torchs_is_not_opened(
    tmp_path: Path, files: list[str], reason: str
) -> None:
    """Its name says what it was built for; what cannot be opened is told too."""
    for name in files:
        (tmp_path / f"{name}.so").write_text("no library")

    with pytest.raises(library.OperatorMissing, match=reason):
        library.load_operator([str(tmp_path)])


@pytest.mark.parametrize("layer", [-1, LAYERS])
@pytest.mark.parametrize("kind", ["gates", "patches"])
def test_a_layer_that_is_not_there_is_an_error_and_no_write_past_the_end(
    stacked: Callable[[Encoder], NativeStack], kind: str, layer: int
) -> None:
    """What the operator is told to change in a layer, it looks up within its own layers."""
    encoder = made(BERT)
    change = {0: 0.5} if kind == "gates" else {0: torch.zeros(3, encoder.config.head_dim)}
    packed = replace(
        encoder.pack([Sequence([1, 2, 3])]), **{kind: [(slice(0, 3), {layer: change})]}
    )

    with pytest.raises(RuntimeError, match=f"no such layer: {layer} of {LAYERS}"):
        stacked(encoder)(packed, set(), set())
