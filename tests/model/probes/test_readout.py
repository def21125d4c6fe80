"""model/probes/readout.py, next to a float64 twin that carries each token by itself."""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForSequenceClassification

from model.config import EncoderConfig
from model.decider import Decider, Marks
from model.decisions import KINDS as QUESTIONS
from model.decisions import Temperatures
from model.encoder import Encoder
from model.kernels import PLAIN, PlainLinear, choose_kernels
from model.loading import assembly, checkpoint
from model.packing import Sequence
from model.pooling import Dense, Norm, Pooling, PoolingLayer, Unit, identity
from model.probes import Readout, Sources
from model.probes.backward import LAYER_SECONDS
from model.probes.carried import carry_sources
from model.probes.frozen_heads import check_linear
from model.probes.readout import share_scores
from model.projection import Projection
from model.similarity import NotLinear
from model.steady import ACTIVATIONS
from model.task_heads import Classifier, Lexical, Splade, Tagger, TaskHead
from tests import task_heads
from tests.model.lessons.test_explain import KINDS, TOKENS, WIDTH, drawn
from tests.model.probes.test_carried import ALONE, CLOSE, EVERY, IDS, Twin, adapted, kinds, twin

CPU = torch.device("cpu")
SEED = 4  # of a head's layers, where relu reads nothing so near 0 that rounding is its sign
INNER, LABELS, PLACES = 7, 3, (0, 11, 22)
MARKERS = (2, 5, 13)
WORDS = [101, 2035, 2003, 5, 102]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Random, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def dense(outputs: int, inputs: int, **choices: Any) -> Dense:
    """A Dense layer of random weights, without an activation where none is chosen."""
    linear = PlainLinear(numbers(outputs, inputs), numbers(outputs))
    return Dense(linear, **{"activation": identity, **choices}, outputs=outputs, weight_count=0)


def head_layers(layers: int) -> Encoder | None:
    """The layers of a decision model's head, of random weights."""
    if not layers:
        return None
    config = EncoderConfig(
        family="decider",
        vocabulary=1,
        width=WIDTH,
        layers=layers,
        heads=3,
        feed_forward=4 * WIDTH,
        max_tokens=TOKENS,
        norm_eps=1e-5,
        embedding_width=WIDTH,
        types=len(QUESTIONS),
        positions="relative",
        embedding_norm=False,
        activation="relu",
        pre_norm=True,
        first_norm=True,
        final_norm=False,
    )
    random = torch.Generator().manual_seed(SEED)
    weights = {
        name: torch.randn(shape, generator=random) * 0.2 + name.endswith("norm.weight")
        for name, shape in assembly.expected_shapes(config).items()
    }
    return assembly.build_encoder(config, weights.__getitem__, CPU, torch.float32, PLAIN)


def decider(layers: int) -> Decider:
    """A decision model's head, asked for a level."""
    own = head_layers(layers)
    types = numbers(len(QUESTIONS), WIDTH) if own is None else own.embeddings.types
    assert types is not None
    norm = Norm((1 + numbers(WIDTH), numbers(WIDTH, seed=1)), 1e-5, WIDTH)
    steps = norm, dense(WIDTH, WIDTH, activation=ACTIVATIONS["gelu"]), dense(1, WIDTH)
    project = Projection(steps)
    marks = Marks(1, 2, 3, "[MASK]", "right")
    window = TOKENS, TOKENS
    return Decider(types, own, project, Temperatures(), window, marks, "score", MARKERS)


def classifier(modes: Any, *layers: PoolingLayer, **pooling: Any) -> Classifier:
    """A head with so many classes as its last layer has outputs."""
    labels = tuple(map(str, range(layers[-1].outputs)))
    return Classifier(labels, Pooling(modes, False, **pooling), Projection(layers), "none", "none")


HEADS: Mapping[str, Classifier | Tagger | Decider] = {
    "the first token, as BERT has it": classifier(
        ("cls",), dense(INNER, WIDTH, activation=torch.tanh), dense(LABELS, INNER)
    ),
    "the mean, as ModernBERT has it": classifier(
        ("mean",),
        dense(INNER, WIDTH, activation=ACTIVATIONS["gelu"]),
        Norm((1 + numbers(INNER), numbers(INNER, seed=1)), 1e-5, INNER),
        dense(LABELS, INNER),
    ),
    "a chain of modules": classifier(
        ("weightedmean", "last"),
        dense(INNER, 2 * WIDTH - 1, residual=PlainLinear(numbers(INNER, 2 * WIDTH - 1), None)),
        dense(INNER, INNER, activation=ACTIVATIONS["silu"], residual=identity),
        dense(LABELS, INNER, activation=F.relu),
        dimensions=2 * WIDTH - 1,
        layers=(dense(2 * WIDTH, 2 * WIDTH, activation=torch.tanh),),
    ),
    "labels of tokens": Tagger(("a", "b", "c"), Projection((dense(LABELS, WIDTH),))),
    "a decision": decider(0),
    "a decision by two layers": decider(2),
}
heads = pytest.mark.parametrize("name", HEADS)


class Within(Twin):
    """The layers of a decision model's head in float64, of a text's parts after the encoder."""

    def __init__(self, head: Decider, own: Twin) -> None:
        assert head.layers is not None
        self.encoder, self.config, self.gates = head.layers, head.layers.config, {}
        kind = head.types[QUESTIONS.index(head.kind)].double()
        self.x, self.parts, self.entered = own.x + kind, own.parts.clone(), []
        self.parts[0] += kind
        for index in range(self.config.layers):
            self.run_layer(index)


def apply(layers: Any, x: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Layers of a head by the book in float64, of rows of the pass and of each part's rows."""
    for layer in layers:
        if isinstance(layer, Norm):
            x, parts = x - x.mean(-1, keepdim=True), parts - parts.mean(-1, keepdim=True)
            sigma = (x.square().mean(-1, keepdim=True) + layer.eps) ** 0.5
            weight, bias = (each.double() for each in layer.affine if each is not None)
            x, parts = x / sigma * weight + bias, parts / sigma * weight
            parts[0] += bias
            continue
        weight, bias = layer.linear.weight().double(), layer.linear.bias.double()
        made, own = x @ weight.T + bias, parts @ weight.T
        own[0] += bias
        factor = layer.activation(made) / made
        if layer.residual is not None:
            more = layer.residual(torch.eye(weight.shape[1])).double()
            x, parts = factor * made + x @ more, factor * own + parts @ more
        else:
            x, parts = factor * made, factor * own
    return x, parts


def read_slowly(head: Any, own: Twin) -> tuple[Tensor, Tensor]:
    """A head's logits, (rows, outputs), and what each part adds, (parts, rows, outputs)."""
    if isinstance(head, Tagger):
        return apply(head.project.layers, own.x[[*PLACES]], own.parts[:, PLACES])
    if isinstance(head, Decider):
        kind = head.types[QUESTIONS.index(head.kind)].double()
        if head.layers is None:
            x, parts = own.x + kind, own.parts.clone()
            parts[0] += kind
        else:
            within = Within(head, own)
            x, parts = within.x, within.parts
        x, parts = apply(head.project.layers, x[[*MARKERS]], parts[:, MARKERS])
        return x.T, parts.mT
    places = torch.arange(1, TOKENS + 1).double()
    weights = {
        "mean": torch.full((TOKENS,), 1 / TOKENS).double(),
        "cls": (places == 1).double(),
        "last": (places == TOKENS).double(),
        "weightedmean": places / places.sum(),
    }
    each = [weights[mode] for mode in head.pooling.modes]
    x = torch.cat([weight @ own.x for weight in each])[None]
    parts = torch.cat([torch.einsum("t,stw->sw", weight, own.parts) for weight in each], 1)[:, None]
    x, parts = apply(head.pooling.layers, x, parts)
    cut = slice(head.pooling.dimensions)
    return apply(head.project.layers, x[:, cut], parts[..., cut])


def shares(encoder: Encoder, readout: Readout, **sequence: Any) -> tuple[Tensor, Tensor]:
    """Of each token in each score, and the rest, float64."""
    text = Sequence(**{"token_ids": IDS, **sequence})
    with torch.inference_mode():
        made = share_scores(encoder, text, readout)
    return made["shares"].double(), made["rest"].double()


def logits(encoder: Encoder, head: Any, **sequence: Any) -> Tensor:
    """What is served, (outputs,) float64."""
    packed = encoder.pack([Sequence(**{"token_ids": IDS, **sequence})])
    with torch.inference_mode():
        told: Tensor = head(encoder(packed).last[packed.rows(0)])["logits"].double()
    return told


@heads
@kinds
def test_each_share_is_what_brute_force_finds(kind: str, name: str) -> None:
    """Of each token in each logit, or in each label's of some tokens, and of all biases."""
    head, mixed = HEADS[name], numbers(LABELS, LABELS, seed=3)
    x, parts = read_slowly(head, twin(kind))

    told, rest = shares(drawn(kind), Readout(head, mixed, PLACES))

    weighed = (parts * mixed.double()).sum(-1)  # (parts, targets)
    scale = max(1, float(weighed.abs().max()))
    assert float((told - weighed[1:].T).abs().max()) < CLOSE * scale
    assert float((rest - weighed[0]).abs().max()) < CLOSE * scale
    assert float((told.sum(1) + rest - (x * mixed).sum(-1)).abs().max()) < CLOSE * scale
    assert float(told.abs().max()) > 1e-3


@heads
@kinds
def test_shares_and_the_rest_sum_to_the_logits_that_are_served(kind: str, name: str) -> None:
    """Within 1e-5, of which the rest has been carried by itself."""
    head = HEADS[name]
    if isinstance(head, Tagger):
        packed = drawn(kind).pack([Sequence(IDS)])
        last = drawn(kind)(packed).last[packed.rows(0)]
        served = head.project(last[[*PLACES]]).diagonal().double()
    else:
        served = logits(drawn(kind), head)

    told, rest = shares(drawn(kind), Readout(head, torch.eye(LABELS), PLACES))

    gap = (told.sum(1) + rest - served).abs().max()
    assert float(gap) < CLOSE * max(1, float(served.abs().max()))


def test_a_margin_is_shared_as_the_difference_of_two_logits() -> None:
    """And each target's shares are its own, with or without others."""
    head = HEADS["the first token, as BERT has it"]
    each, rests = shares(drawn("gte"), Readout(head, torch.eye(LABELS)))

    told, rest = shares(drawn("gte"), Readout(head, torch.tensor([[1.0, 0.0, -1.0]])))

    torch.testing.assert_close(told[0], each[0] - each[2], rtol=0, atol=CLOSE)
    torch.testing.assert_close(rest[0], rests[0] - rests[2], rtol=0, atol=CLOSE)


def rounded(kind: str) -> Encoder:
    """One kind's encoder in bfloat16."""
    random = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=random) * 0.1 + name.endswith("norm.weight")
        for name, shape in assembly.expected_shapes(KINDS[kind]).items()
    }
    way = choose_kernels(CPU, torch.bfloat16)
    return assembly.build_encoder(KINDS[kind], weights.__getitem__, CPU, torch.bfloat16, way)


@pytest.mark.parametrize(
    ("encoder", "sequence"),
    [
        (lambda: drawn("bert"), {"gates": {1: {0: 0.0, 3: 0.5}}}),
        (lambda: drawn("bert"), {"types": [0] * 9 + [1] * (TOKENS - 9)}),
        (lambda: drawn("bert"), {"unseen": 5}),
        (lambda: drawn("deberta-v2"), {"unseen": 5}),
        (lambda: drawn("albert"), {"token_ids": None, "embeddings": numbers(TOKENS, 19)}),
        (lambda: adapted(), {}),
        (lambda: rounded("bert"), {}),
        (lambda: rounded("modernbert"), {"gates": {0: {1: 0.25}}}),
        (lambda: drawn("qwen3"), {"gates": {2: {1: 2.0}}}),
    ],
    ids=[
        *("gates", "segments", "unseen tokens", "unseen tokens by distance", "embeddings"),
        *("an adapter", "bfloat16", "bfloat16 and gates", "causal and gates"),
    ],
)
def test_however_a_text_is_read_shares_are_those_of_its_carried_tokens(
    encoder: Any, sequence: dict[str, Any]
) -> None:
    """As carried.py has them, which runs the other way; a linear head has nothing to keep."""
    last = dense(LABELS, WIDTH)
    read, text = encoder(), Sequence(**{"token_ids": IDS, **sequence})
    with torch.inference_mode():
        carried = carry_sources(read, text, Sources(ALONE, EVERY, ("mean",))).double()

    readout = Readout(classifier(("mean",), last), torch.eye(LABELS))
    told, rest = shares(read, readout, **sequence)

    expected = carried @ last.linear.weight().double().T
    assert last.linear.bias is not None
    expected[0] += last.linear.bias.double()
    torch.testing.assert_close(told, expected[1:].T, rtol=0, atol=CLOSE)
    torch.testing.assert_close(rest, expected[0], rtol=0, atol=CLOSE)


def frozen_gradients(theirs: BertForSequenceClassification, ids: list[int]) -> tuple[Tensor, ...]:
    """DecompX by transformers' own modules: each step's gate is detached, autograd does the rest.

    Returns:
        Shares of each token in each logit, (labels, tokens), and the logits, (labels,).
    """
    body = theirs.bert
    x = leaf = body.embeddings(torch.tensor([ids]))[0].detach().requires_grad_()
    for layer in body.encoder.layer:
        own = layer.attention.self
        size, count = own.attention_head_size, own.num_attention_heads
        q, k, v = (
            linear(x).view(len(ids), count, size).transpose(0, 1)
            for linear in (own.query, own.key, own.value)
        )
        pattern = (q @ k.mT / math.sqrt(size)).softmax(-1).detach()
        mixed = (pattern @ v).transpose(0, 1).flatten(1)
        written = layer.attention.output
        x = frozen_norm(x + written.dense(mixed), written.LayerNorm)
        z = layer.intermediate.dense(x)
        inner = z * (F.gelu(z) / z).detach()
        x = frozen_norm(x + layer.output.dense(inner), layer.output.LayerNorm)
    assert body.pooler is not None
    z = body.pooler.dense(x[0])
    told = theirs.classifier(z * (torch.tanh(z) / z).detach())
    each = [torch.autograd.grad(logit, leaf, retain_graph=True)[0] for logit in told]
    return torch.stack([(leaf * g).sum(-1) for g in each]).detach(), told.detach()


def frozen_norm(x: Tensor, norm: Any) -> Tensor:
    """LayerNorm with its divisor detached."""
    centred = x - x.mean(-1, keepdim=True)
    sigma = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().detach()
    made: Tensor = centred / sigma * norm.weight + norm.bias
    return made


def test_they_are_decompx_as_transformers_modules_have_it(tmp_path: Path) -> None:
    """Of a checkpoint of BERT with three classes, which both read."""
    theirs = task_heads.checkpoint(tmp_path, "ForSequenceClassification", num_labels=LABELS)
    assert isinstance(theirs, BertForSequenceClassification)
    expected, their_logits = frozen_gradients(theirs, WORDS)
    model = checkpoint.load_checkpoint(tmp_path, CPU, torch.float32, PLAIN)
    (head,) = model.task_heads

    readout = Readout(check_linear(head), torch.eye(LABELS))
    told, rest = shares(model.encoder, readout, token_ids=WORDS)

    scale = max(1, float(expected.abs().max()))
    assert float((told - expected).abs().max()) < CLOSE * scale
    assert float((told.sum(1) + rest - their_logits).abs().max()) < CLOSE * scale
    assert float(expected.std()) > 1e-2


def test_where_an_activation_reads_0_its_factor_is_the_slope() -> None:
    """By hand, without layers: two tokens whose mean is 0 add half a slope each, of one sign."""
    bare = copy.copy(drawn("eurobert"))
    bare.layers, bare.native = [], None
    row, read = numbers(WIDTH), numbers(1, WIDTH, seed=1)
    for activation, slope in ((torch.tanh, 1), (ACTIVATIONS["silu"], 0.5), (F.relu, 0)):
        zero = Dense(PlainLinear(read, None), activation, 1, WIDTH)
        once = Dense(PlainLinear(torch.ones(1, 1), None), identity, 1, 1)
        readout = Readout(classifier(("mean",), zero, once), torch.eye(1))

        told, rest = shares(bare, readout, token_ids=None, embeddings=torch.stack([row, -row]))

        half = float(read @ row) / 2 * slope
        assert told[0].tolist() == pytest.approx([half, -half], abs=1e-6)
        assert not rest.any()


def nonlinear() -> dict[str, TaskHead]:
    """Heads by what is said of them."""
    last = dense(LABELS, WIDTH)
    pooled = classifier(("mean",), last)
    project = Projection((last,))
    return {
        'pooling "max"': classifier(("max",), last),
        "a scaling to length 1": replace(pooled, pooling=Pooling(("mean",), True)),
        "a scaling to length 1 before": classifier(("mean",), Unit(WIDTH), last),
        "not 0 at 0": classifier(("mean",), dense(WIDTH, WIDTH, activation=torch.sigmoid), last),
        "a residual": classifier(("mean",), dense(WIDTH, WIDTH, residual=torch.tanh), last),
        "Splade": Splade(project, "max", log_twice=False),
        "Lexical": Lexical(project, frozenset()),
    }


@pytest.mark.parametrize("named", nonlinear())
def test_a_head_that_is_not_linear_is_refused_by_name(named: str) -> None:
    """What its gates do not make linear: a maximum, a length, an activation with an offset."""
    with pytest.raises(NotLinear, match=named):
        check_linear(nonlinear()[named])


@heads
def test_a_head_that_is_linear_is_taken(name: str) -> None:
    """Each of those that are compared here."""
    assert check_linear(HEADS[name]) is HEADS[name]


@cache
def price(targets: int, layers: int) -> tuple[int, int, float]:
    """Of a decision's readout: operations, bytes besides, and seconds of calls."""
    readout, config = Readout(decider(layers), torch.zeros(targets, LABELS)), KINDS["bert"]
    asked = readout.flops(config, TOKENS), readout.scratch_bytes(config, TOKENS)
    return *asked, readout.call_seconds(config)


def test_a_readout_is_priced_by_its_targets_and_all_layers() -> None:
    """Those of the head count with the encoder's; alike readouts are priced once."""
    assert price(1, 0)[0] < price(2, 0)[0] < price(2, 2)[0]
    assert price(1, 0)[1] < price(2, 0)[1] < price(2, 2)[1]
    assert price(1, 2)[2] - price(1, 0)[2] == pytest.approx(2 * LAYER_SECONDS)
    head = HEADS["labels of tokens"]
    one, other, more = (Readout(head, torch.zeros(count, LABELS)) for count in (2, 2, 3))
    assert one.price_key == other.price_key != more.price_key
