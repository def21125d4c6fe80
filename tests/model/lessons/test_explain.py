"""model/lessons.py"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from model import kernels, lessons
from model.attention.positions import Rope
from model.config import LINEAR_NAMES, EncoderConfig, Relative
from model.encoder import Encoder
from model.lessons import explain_layer
from model.loading import assembly
from model.loading.checkpoint import Model
from model.packing import Sequence

CPU = torch.device("cpu")
LAYERS, HEADS, HEAD, TOKENS, WINDOW = 3, 5, 6, 23, 7
WIDTH, INNER = HEADS * HEAD, 41
CLOSE = 1e-5  # absolute, of numbers around 1

BERT = EncoderConfig(
    family="bert",
    vocabulary=97,
    width=WIDTH,
    layers=LAYERS,
    heads=HEADS,
    feed_forward=INNER,
    max_tokens=29,
    norm_eps=1e-12,
    embedding_width=WIDTH,
    types=2,
)
ROTARY = replace(
    BERT,
    positions="rotary",
    ropes=tuple(Rope(theta=theta) for theta in (9.0, 99.0, 99.0)),
    biases=(),
    gated=True,
    activation="silu",
)
KINDS = {
    "bert": BERT,
    "transformer-base": replace(
        BERT, positions="sinusoidal", embedding_norm=False, activation="relu", types=0
    ),
    "albert": replace(BERT, shared=True, embedding_width=19),
    "mpnet": replace(BERT, buckets=32, types=0),
    "deberta-v2": replace(
        BERT,
        positions="relative",
        relative=Relative(reach=8, furthest=29, by_query=True, by_key=True, norm=True),
    ),
    "jina-embeddings-v2": replace(BERT, positions="alibi", gated=True),
    "nomic_bert": ROTARY,
    "jina_embeddings_v3": replace(ROTARY, biases=LINEAR_NAMES, gated=False, activation="gelu"),
    "gte": replace(ROTARY, biases=("query", "key", "value", "output", "down"), activation="gelu"),
    "modernbert": replace(
        ROTARY,
        pre_norm=True,
        norm_bias=False,
        types=0,
        activation="gelu",
        windows=(None, WINDOW, WINDOW),
    ),
}
KINDS["qwen3"] = replace(
    ROTARY,
    heads=2 * HEADS,
    key_heads=2,
    head_size=HEAD,
    pre_norm=True,
    first_norm=True,
    head_norm=True,
    norm="rms",
    norm_bias=False,
    embedding_norm=False,
    types=0,
    causal=True,
)
KINDS["eurobert"] = replace(KINDS["qwen3"], head_norm=False, causal=False)
KINDS["gemma3_text"] = replace(
    KINDS["qwen3"],
    block_norm=True,
    norm_from_one=True,
    embedding_scale=WIDTH**0.5,
    score_width=11,
    windows=(None, WINDOW, WINDOW),
    causal=False,
)
# Sizes at which an axis of one or a kernel's remainder could go wrong
KINDS |= {
    "one head of 80": replace(BERT, layers=2, heads=1, head_size=80),
    "one layer, heads of 10": replace(BERT, layers=1, heads=3),
    "heads of 24": replace(ROTARY, layers=1, ropes=ROTARY.ropes[:1], heads=2, head_size=24),
    "heads of 40": replace(KINDS["mpnet"], layers=1, heads=2, head_size=40),
}

kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def drawn(kind: str) -> Encoder:
    """An encoder of random weights, every bias and norm included."""
    random = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=random) * 0.1 + name.endswith("norm.weight")
        for name, shape in assembly.expected_shapes(KINDS[kind]).items()
    }
    way = kernels.choose_kernels(CPU, torch.float32)
    return assembly.build_encoder(KINDS[kind], weights.__getitem__, CPU, torch.float32, way)


def explained(encoder: Encoder, layer: int, ids: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    """The steps of one layer, and what the encoder itself holds after it, (tokens, width)."""
    packed = encoder.pack([Sequence([1] * 3), Sequence(ids)])  # not the first rows of its batch
    rows = packed.rows(1)
    with torch.inference_mode():
        encoded = encoder(packed, hidden={layer, layer + 1})
        steps = explain_layer(encoder, layer, encoded.hidden[layer][rows])
    return steps, encoded.hidden[layer + 1][rows]


def furthest(expected: Tensor, actual: Tensor) -> float:
    """The largest difference of two arrays of one shape."""
    assert expected.shape == actual.shape
    return float((expected - actual).abs().max())


@kinds
def test_the_last_step_is_the_encoders_own_next_state(kind: str) -> None:
    """Of the last layer after the encoder's last norm, as hidden states are counted."""
    for layer in range(KINDS[kind].layers):
        steps, state = explained(drawn(kind), layer, list(range(TOKENS)))

        assert furthest(state, steps["output"]) <= CLOSE, layer
        assert furthest(state, steps["x"]) > 0.1, layer


@pytest.mark.parametrize("layer", [0, 5])
def test_the_last_step_is_the_served_models_next_state(model: Model, layer: int) -> None:
    """With the real weights, as oneDNN holds them."""
    ids = model.tokenizer([("A dog ate the food because it was hungry",)], 99, "right")[0].token_ids

    steps, state = explained(model.encoder, layer, ids)

    assert furthest(state, steps["output"]) <= CLOSE


@kinds
def test_the_steps_are_those_of_the_pass_that_serves(kind: str) -> None:
    """What its maps are made of: q, k, v, what is mixed, the log of each softmax row's sum."""
    encoder = drawn(kind)
    packed = encoder.pack([Sequence(list(range(TOKENS)))])
    traces = encoder(packed, traces=set(range(KINDS[kind].layers))).traces

    for layer, trace in traces.items():
        steps, _ = explained(encoder, layer, list(range(TOKENS)))
        k, v = map(trace.attention.repeat_shared, (trace.k, trace.v))
        for name, served in (("q", trace.q), ("k", k), ("v", v)):
            assert furthest(served[packed.rows(0)].transpose(0, 1), steps[name]) <= CLOSE
        assert furthest(trace.z[packed.rows(0)], steps["concat"]) <= CLOSE
        normaliser = trace.normaliser_of(packed.rows(0))
        assert furthest(normaliser, steps["scores"].logsumexp(-1)) <= CLOSE


@kinds
def test_every_step_has_the_shape_of_its_name(kind: str) -> None:
    """In the order in which one follows from the other; only pre-norm has one more."""
    config = KINDS[kind]

    steps, _ = explained(drawn(kind), config.layers - 1, list(range(TOKENS)))

    count, rows, mixed = config.heads, (TOKENS, WIDTH), (TOKENS, config.mixed_width)
    maps_, heads = (count, TOKENS, TOKENS), (count, TOKENS, config.head_dim)
    shapes = {"x": rows} | ({"entered": rows} if config.pre_norm else {})
    shapes |= dict.fromkeys(("q", "k", "v"), heads)
    shapes |= dict.fromkeys(("scores", "probabilities"), maps_) | {"z": heads}
    shapes |= {"concat": mixed}
    shapes |= dict.fromkeys(("projected", "normed", "feed_forward", "output"), rows)
    assert list(shapes.items()) == [(name, tuple(step.shape)) for name, step in steps.items()]


def test_a_step_follows_from_the_one_before() -> None:
    """Scores from q and k, probabilities from scores, Z from these and v, concat head by head."""
    steps, _ = explained(drawn("bert"), 1, list(range(TOKENS)))

    scores = steps["q"] @ steps["k"].transpose(1, 2) / HEAD**0.5
    assert furthest(scores, steps["scores"]) <= CLOSE
    shares = scores.exp() / scores.exp().sum(-1, keepdim=True)
    assert furthest(shares, steps["probabilities"]) <= CLOSE
    assert furthest(shares @ steps["v"], steps["z"]) <= CLOSE
    assert furthest(torch.cat(list(steps["z"]), 1), steps["concat"]) == 0


def test_before_the_first_layer_a_pre_norm_family_normalises_nothing() -> None:
    """There the projections read x itself, later LayerNorm(x)."""
    first, _ = explained(drawn("modernbert"), 0, list(range(TOKENS)))
    second, _ = explained(drawn("modernbert"), 1, list(range(TOKENS)))

    assert first["entered"].equal(first["x"])
    assert furthest(second["entered"], second["x"]) > 0.1


def test_beyond_a_window_there_is_no_score() -> None:
    """-inf there and nowhere else, and no probability."""
    steps, _ = explained(drawn("modernbert"), 1, list(range(TOKENS)))

    place = torch.arange(TOKENS)
    far = ((place[:, None] - place).abs() > WINDOW).expand(HEADS, -1, -1)
    assert far.equal(steps["scores"] == -torch.inf)
    assert far.equal(steps["probabilities"] == 0)


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_half_precision_weights_are_explained_in_float32(kind: str) -> None:
    """From the numbers that the weights were rounded to; the state differs by its own rounding."""
    way = kernels.choose_kernels(CPU, torch.bfloat16)
    random = torch.Generator().manual_seed(2)
    weights = {
        name: torch.randn(shape, generator=random) * 0.1 + name.endswith("norm.weight")
        for name, shape in assembly.expected_shapes(KINDS[kind]).items()
    }
    half = assembly.build_encoder(KINDS[kind], weights.__getitem__, CPU, torch.bfloat16, way)

    steps, state = explained(half, 1, list(range(TOKENS)))

    assert {step.dtype for step in steps.values()} == {torch.float32}
    assert 0 < furthest(state.float(), steps["output"]) <= 0.1


def test_a_decoder_scores_no_key_after_its_query() -> None:
    """-inf there and nowhere else; and its first layer reads normalised rows too."""
    steps, _ = explained(drawn("qwen3"), 0, list(range(TOKENS)))

    after = torch.ones(TOKENS, TOKENS).triu(1).bool().expand(2 * HEADS, -1, -1)
    assert after.equal(steps["scores"] == -torch.inf)
    assert furthest(steps["entered"], steps["x"]) > 0.1


def test_heads_that_share_keys_are_explained_each_with_its_own() -> None:
    """From the weights that are told: of x, before the norm of each head and the rotation."""
    encoder = drawn("qwen3")
    steps, _ = explained(encoder, 1, list(range(TOKENS)))
    named = lessons.step_weights(encoder, 1)

    assert named["k.weight"].shape == named["q.weight"].shape == (2 * HEADS, WIDTH, HEAD)
    assert torch.equal(named["v.weight"][0], named["v.weight"][HEADS - 1])
    values = steps["entered"] @ named["v.weight"]  # which nothing turns
    assert furthest(values, steps["v"]) <= CLOSE
    q = torch.nn.functional.rms_norm(
        steps["entered"] @ named["q.weight"], (HEAD,), named["q_norm.weight"], 1e-12
    )
    assert furthest(q[:, 0], steps["q"][:, 0]) <= CLOSE  # at position 0 nothing is turned
