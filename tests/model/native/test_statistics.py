"""model/native/statistics.py: the operator's statistics are the walk's, but for a bound."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model import kernels
from model.attention import Trace
from model.config import EncoderConfig
from model.encoder import Encoder
from model.loading.assembly import build, expected
from model.loading.checkpoint import Model
from model.maps import statistics as walk
from model.maps.choices import FIELDS
from model.maps.tiles import Look
from model.native import library
from model.native.statistics import NEAR, Compiled, agrees
from model.packing import Sequence
from model.positions import Rope

ROOT = Path(__file__).parent.parent.parent.parent
CPU = torch.device("cpu")
LAYERS, HEADS, HEAD, WINDOW = 2, 3, 14, 5
LENGTHS = (1, 2, 3, 15, 16, 17, 63, 64, 65, 128, 131, 200)

BERT = EncoderConfig(
    family="bert",
    vocabulary=97,
    width=HEADS * HEAD,
    layers=LAYERS,
    heads=HEADS,
    feed_forward=53,
    max_tokens=max(LENGTHS),
    norm_eps=1e-12,
    embedding_width=HEADS * HEAD,
    types=3,
)
ROTARY: dict[str, Any] = {"positions": "rotary", "ropes": (Rope(theta=1e4),) * LAYERS}
FAMILIES = {
    "learned positions": BERT,
    "distances": replace(BERT, buckets=32, types=0),
    "rotary": replace(BERT, **ROTARY, gated=True, biases=()),
    "a window": replace(BERT, **ROTARY, pre_norm=True, windows=(None, WINDOW)),
    "no neighbours": replace(BERT, **ROTARY, pre_norm=True, windows=(None, 0)),
    "a wide window": replace(BERT, windows=(100, 63)),
    "a window and distances": replace(BERT, windows=(WINDOW, None), buckets=32),
    "wide heads": replace(BERT, width=HEADS * 96, embedding_width=HEADS * 96),
    "causal": replace(BERT, causal=True),
    "shared keys, a window back": replace(
        BERT, heads=2 * HEADS, key_heads=2, head_size=HEAD, causal=True, windows=(None, WINDOW)
    ),
}

# what a subprocess tells of a processor with fewer instructions
ASKED = """
import torch
from service.engine.loading import accelerate, load
from service.engine.weights import BUNDLED, locate

model = load(locate(BUNDLED), torch.device("cpu"), torch.float32)
accelerate(model)
print(model.encoder.native is not None, model.encoder.statistics is not None)
"""


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    """The operator's; without a compiler, or on a processor without AVX2, there is none."""
    try:
        library.load()
        return Compiled(library.statistics())
    except library.Missing as reason:
        pytest.skip(f"no compiled statistics: {reason}")


def made(config: EncoderConfig, dtype: torch.dtype = torch.float32) -> Encoder:
    """An encoder of random weights, large enough that heads prefer some keys."""
    chance = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=chance) * 0.3 + name.endswith("norm.weight")
        for name, shape in expected(config).items()
    }
    return build(config, weights.__getitem__, CPU, dtype, kernels.choose(CPU, dtype))


def traced(encoder: Encoder, batch: Many[Sequence]) -> Callable[[int], tuple[list[Trace], slice]]:
    """A batch's traces, and the rows of the sequence at a place."""
    packed = encoder.pack(batch)
    traces = encoder(packed, traces=frozenset(range(encoder.config.layers))).traces
    return lambda place: ([traces[layer] for layer in sorted(traces)], packed.rows(place))


def drawn(length: int, vocabulary: int = 97, **more: Any) -> Sequence:
    """A sequence whose tokens follow from its length."""
    chance = random.Random(length)
    return Sequence([chance.randrange(vocabulary) for _ in range(length)], **more)


def walked(
    traces: Many[Trace], rows: slice, heads: Many[Many[int]], cls: int | None, apart: Many[int]
) -> Tensor:
    """The twin's."""
    looks = [Look(trace, rows, some) for trace, some in zip(traces, heads, strict=True)]
    return walk.statistics(looks, traces, rows, cls, apart)


@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_the_walks(name: str, compiled: Compiled) -> None:
    """At every length, of some heads and of all, with separators, with none, with nothing else."""
    encoder = made(FAMILIES[name])
    of = traced(encoder, [drawn(length) for length in LENGTHS])
    every = [range(encoder.config.heads)] * LAYERS

    for place, length in enumerate(LENGTHS):
        traces, rows = of(place)
        for heads, cls, apart in (
            (every, 0, [length - 1]),
            ([(2, 0, 2), (1,)], None, []),
            (every, length - 1, [*range(length)]),
            (every, 0, [0, length // 2, length // 2]),
        ):
            found = compiled(traces, rows, heads, cls, apart)
            twin = walked(traces, rows, heads, cls, apart)
            assert found.shape == (sum(map(len, heads)), len(FIELDS))
            torch.testing.assert_close(found, twin, rtol=NEAR, atol=NEAR, equal_nan=True)


def test_tokens_that_no_token_looks_at_receive_nothing(compiled: Compiled) -> None:
    """What hides them is added to the scores."""
    of = traced(made(BERT), [drawn(70, unseen=30), drawn(70)])
    heads = [range(HEADS)] * LAYERS

    for place in (0, 1):
        traces, rows = of(place)
        found = compiled(traces, rows, heads, 69, [69])
        torch.testing.assert_close(
            found, walked(traces, rows, heads, 69, [69]), rtol=1e-5, atol=1e-5
        )
        received = found[:, [FIELDS.index("cls"), FIELDS.index("sep")]]
        assert bool((received == 0).all()) is (place == 0)


def test_half_precision_is_read_as_it_was_multiplied(compiled: Compiled) -> None:
    """Queries and keys in bfloat16, sums in float32."""
    encoder = made(BERT, torch.bfloat16)
    traces, rows = traced(encoder, [drawn(70)])(0)
    heads = [range(HEADS)] * LAYERS

    found = compiled(traces, rows, heads, 0, [69])

    torch.testing.assert_close(found, walked(traces, rows, heads, 0, [69]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tokens", [9, 67, 131])
def test_they_have_the_same_bits_in_any_batch_on_any_cores_and_of_any_heads(
    model: Model, compiled: Compiled, threads: Callable[[int], None], tokens: int
) -> None:
    """A head's numbers follow from its sequence alone."""
    sequence, others = drawn(tokens, 30522), [drawn(length, 30522) for length in (5, tokens, 200)]
    layers, heads = model.config.layers, range(model.config.heads)

    def table(batch: list[Sequence], place: int, heads: Many[int], cores: int) -> Tensor:
        traces, rows = traced(model.encoder, batch)(place)
        threads(cores)
        found = compiled(traces, rows, [heads] * layers, 0, [tokens - 1])
        threads(1)
        return found.view(layers, len(heads), -1)

    alone = table([sequence], 0, heads, 1)

    for cores in (1, 2, 3):
        assert torch.equal(table([*others, sequence, *others], 3, heads, cores), alone)
        assert torch.equal(table([sequence], 0, [7], cores), alone[:, [7]])


def test_what_differs_does_not_agree(compiled: Compiled) -> None:
    """The negative control: each field moved by little more than the bound is found out."""
    encoder = made(BERT)
    assert agrees(encoder, compiled)

    for field, name in enumerate(FIELDS):

        def moved(*asked: Any, field: int = field) -> Tensor:
            table = compiled(*asked)
            table[:, field] *= 1 + 3e-4
            return table

        assert not agrees(encoder, moved), name


@pytest.mark.parametrize(("capability", "has"), [("avx2", True), ("default", False)])
@pytest.mark.usefixtures("compiled")
def test_a_processor_with_less_has_its_own_walk_or_none(capability: str, has: bool) -> None:
    """torch's name for the processor picks it; where there is none, the twin serves."""
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}

    told = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )

    assert told.stdout.split() == ["True", str(has)]
