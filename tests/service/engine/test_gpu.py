"""The CUDA path without a GPU: every family and every answer, and who waits for the device.

Under torch's fake tensors the lanes run as on a GPU, without numbers: devices, dtypes and shapes
must fit, and each copy to the host stands in the table of docs/gpu.md.
benchmarks/gpu.py has the numbers, on a GPU.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from model import cuda, encoder, kernels
from model.attention.positions import Rope
from model.config import Activation, EncoderConfig, Relative
from model.kernels import PLAIN, Kernels, PlainLinear
from model.loading import checkpoint
from model.loading.assembly import build_encoder, expected_shapes
from model.loading.checkpoint import Model
from model.maps.choices import Form
from model.maps.forms import Selection
from model.maps.units import Units, divide_into_units
from model.packing import Sequence
from model.pooling import Dense, Pooling, Unit, identity
from model.probes import Maps, Parts, Sources, Steps, Why
from model.projection import Projection
from model.task_heads import Classifier, Lexical, Splade, Tagger, TaskHead, VectorHead
from service.engine.lanes import Lanes
from service.files.weights import BUNDLED_MODEL, locate_model
from service.shapes.work import Outputs, Result, Work
from tests.service.engine.fake_gpu import CUDA, ROOT, Place, Watch, watched

TABLE = ROOT / "docs" / "gpu.md"
LAYERS, HEADS, HEAD, WINDOW = 2, 3, 16, 5

BERT = EncoderConfig(
    family="bert",
    vocabulary=97,
    width=HEADS * HEAD,
    layers=LAYERS,
    heads=HEADS,
    feed_forward=53,
    max_tokens=64,
    norm_eps=1e-12,
    embedding_width=HEADS * HEAD,
    types=2,
)
ROTARY: dict[str, Any] = {"positions": "rotary", "ropes": (Rope(theta=1e4),) * LAYERS}
FAMILIES = {
    "bert": BERT,
    "electra": replace(BERT, family="electra", embedding_width=19),
    "albert": replace(BERT, family="albert", embedding_width=19, shared=True),
    "ernie": replace(BERT, family="ernie", kinds=3),
    "roberta": replace(BERT, family="roberta", position_offset=2, pad=1, types=1),
    "distilbert": replace(BERT, family="distilbert", types=0),
    "mpnet": replace(BERT, family="mpnet", buckets=32, types=0),
    "deberta-v2": replace(
        BERT,
        positions="relative",
        relative=Relative(reach=8, furthest=64, by_query=True, by_key=True, norm=True),
    ),
    "nomic": replace(BERT, **ROTARY, gated=True, biases=(), activation="silu"),
    "gte": replace(BERT, **ROTARY, gated=True, biases=("query", "key", "value", "output", "down")),
    "jina": replace(BERT, **ROTARY),
    "modernbert": replace(
        BERT,
        **ROTARY,
        pre_norm=True,
        gated=True,
        biases=(),
        norm_bias=False,
        types=0,
        windows=(None, WINDOW),
    ),
    "the source texts'": replace(BERT, positions="sinusoidal", embedding_norm=False, types=0),
    "a window and distances": replace(BERT, windows=(WINDOW, None), buckets=32),
} | {f"bert, {name}": replace(BERT, activation=name) for name in get_args(Activation)}

FAMILIES["qwen3"] = replace(
    BERT,
    **ROTARY,
    heads=2 * HEADS,
    key_heads=HEADS,
    head_size=HEAD,
    pre_norm=True,
    first_norm=True,
    head_norm=True,
    norm="rms",
    norm_bias=False,
    embedding_norm=False,
    gated=True,
    biases=(),
    types=0,
    causal=True,
)
FAMILIES["gemma3_text"] = replace(
    FAMILIES["qwen3"],
    block_norm=True,
    norm_from_one=True,
    embedding_scale=7.0,
    score_width=11,
    windows=(None, WINDOW),
    causal=False,
)

GROUPED = Kernels("grouped", PlainLinear, cuda.attend_grouped)
VARLEN = Kernels("varlen", PlainLinear, cuda.attend_grouped, cuda.attend_packed)
WAYS = {
    "varlen in bfloat16": (VARLEN, torch.bfloat16),
    "varlen in float16": (VARLEN, torch.float16),
    "grouped in float32": (GROUPED, torch.float32),
    "grouped in bfloat16": (GROUPED, torch.bfloat16),
    "plain in float32": (PLAIN, torch.float32),
    "plain in float16": (PLAIN, torch.float16),
}


def units(tokens: int) -> list[Units]:
    """Tokens; and words of two without the special ones, scaled up."""
    words, special = [place // 2 for place in range(tokens)], [False] * tokens
    special[0] = special[-1] = True
    some: dict[str, Any] = {"words": words, "special": special, "specials": "renormalize"}
    return [divide_into_units(tokens), divide_into_units(tokens, level="word", **some)]


def selections(tokens: int, forms: Iterable[Form]) -> Iterator[Selection]:
    """These forms of attention, of tokens and of words, each weight, and in half precision."""
    every = {0: (0, 2), 1: tuple(range(HEADS))}
    for shown in units(tokens):
        marks: dict[str, Any] = {"cls": 0, "separators": (tokens - 1,), "rows": shown.axis[:1]}
        marks["segments"] = shown.axis[:1], shown.axis[1:]
        for form in forms:
            yield Selection(every, shown, form=form, k=2, size=3, **marks)
            if form in ("full", "top", "mean"):
                yield Selection(every, shown, form=form, k=2, averaged=True, **marks)
            if form in ("top", "dominance"):
                weighed: dict[str, Any] = {"weight": "value_norm", "half": True, **marks}
                yield Selection(every, shown, form=form, **weighed)


def heads(width: int) -> list[TaskHead]:
    """One of every kind that follows an encoder."""
    weight, bias = torch.zeros(5, width, device=CUDA), torch.zeros(5, device=CUDA)
    project = Projection((Dense(PlainLinear(weight, bias), identity, 5, 5 * width),))
    one = Projection((Dense(PlainLinear(weight[:1], bias[:1]), identity, 1, width),))
    names, first = tuple("abcde"), Pooling(("cls",), normalize=False)
    return [
        Classifier(names, first, project, "softmax", "sigmoid"),
        Tagger(names, project),
        Splade(project, "max", log_twice=True, k=2),
        Splade(project, "sum", log_twice=False),
        Lexical(one, frozenset({3}), token_ids=[5] * 7),
        VectorHead(Projection((Unit(width),)), {}, kept=(0, 2, 3)),
    ]


def works(config: EncoderConfig, forms: Iterable[Form]) -> list[Work]:
    """Everything that a lane can be asked for in one batch, and attention in these forms."""
    mean = Pooling(("mean",), normalize=True)
    other = Pooling(("cls", "max", "last", "mean_sqrt_len", "weightedmean"), False, dimensions=11)
    every = frozenset(range(LAYERS + 1))
    gates, patch = {0: {1: 0.5}}, {1: {0: torch.zeros(7, config.head_dim)}}
    asked = [
        (Sequence([5] * 7), Outputs(mean)),
        (Sequence([5] * 3), Outputs(other, tokens=True, hidden=every)),
        (Sequence([5] * 7, gates=gates, patches=patch), Outputs(mean, kept=frozenset({0}))),
        (Sequence(embeddings=torch.zeros(7, config.embedding_width)), Outputs(mean)),
        (Sequence([5] * 40), Outputs(mean, probes=(Steps(1, weights=True),))),
        (Sequence([5] * 7), Outputs(probes=(Parts([(0, 2), (3, 7)], mean),))),
    ]
    if "why" in forms:
        explained = Selection({1: (0,)}, divide_into_units(7), "why", rows=(2,))
        sources = Sources(range(1, 8), range(3), layers=1)
        asked += [(Sequence([5] * 7), Outputs(probes=(Why(explained, sources),)))]
    asked += [
        (Sequence([5] * 40), Outputs(probes=(Why(one) if one.form == "why" else Maps(one),)))
        for one in selections(40, forms)
    ]
    asked += [(Sequence([5] * 7), Outputs(task_heads=(head,))) for head in heads(config.width)]
    return [Work(*one) for one in asked]


@pytest.fixture(scope="module")
def bundled() -> Model:
    """A model whose encoder is put in place of; the rest of it is no matter of the device."""
    return checkpoint.load_checkpoint(
        locate_model(BUNDLED_MODEL).folder, torch.device("cpu"), torch.float32, PLAIN
    )


def run(
    bundled: Model,
    config: EncoderConfig,
    way: Kernels,
    dtype: torch.dtype,
    asked: int | None = None,
    forms: Iterable[Form] = get_args(Form),
) -> Watch:
    """Answer so much, or all, on a GPU that is none; where it was waited for."""
    weights = {name: torch.zeros(shape) for name, shape in expected_shapes(config).items()}
    with torch.inference_mode(), watched() as watch:
        built = build_encoder(config, weights.__getitem__, CUDA, dtype, way)
        model = replace(bundled, config=config, encoder=built)
        watch.forget()  # what the start waits for is no matter
        lanes, every = Lanes(model, []), works(config, forms)[:asked]
        results = lanes.run_batch(every, 1) + lanes.run_batch(every[:1] * 3, 1)
    for one in results:
        assert isinstance(one, Result), one
    return watch


# whose layers are bert's own: other embeddings, or another activation; or bert's, but rotary; or
# what "a window and distances" has too
ALIKE = ("electra", "albert", "ernie", "roberta", "distilbert", "bert, ", "nomic", "gte", "jina")
ALIKE += ("mpnet", "the source texts'")


OWN = [family for family in FAMILIES if not family.startswith(ALIKE)]

# Each of the six ways by a family with layers of its own, in one form, but the first, by which bert
# is asked for every form below; `make prove` tries all ways of all families, and every form where
# the layers are a family's own.
PATHS = [
    pytest.param(family, way, ("full",))
    for family, way in zip(OWN[1:], list(WAYS)[1:], strict=True)
]
PATHS += [
    pytest.param(family, way, get_args(Form) if family in OWN else (), marks=pytest.mark.prove)
    for family in FAMILIES
    for way in WAYS
    if family != f"bert, {BERT.activation}"  # bert itself
]


@pytest.mark.parametrize(("family", "way", "forms"), PATHS)
def test_every_answer_of_every_family_is_made_and_waits_where_the_table_says(
    bundled: Model, family: str, way: str, forms: tuple[Form, ...]
) -> None:
    """Devices, dtypes and shapes fit; no other line copies from the device or waits for it."""
    assert set(run(bundled, FAMILIES[family], *WAYS[way], forms=forms).waits) <= told()


def test_every_row_of_the_table_is_where_the_device_is_waited_for(
    bundled: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no longer waits is taken out of it; no answer needs triton, an import of which fails."""
    monkeypatch.setitem(sys.modules, "triton", None)

    assert set(run(bundled, BERT, *WAYS["varlen in bfloat16"]).waits) == told()


@pytest.mark.parametrize("family", OWN)
def test_what_a_pass_and_its_answers_read_is_sent_without_a_wait(
    bundled: Model, family: str
) -> None:
    """From page-locked memory, so that launching goes on; only maps send their choices plainly."""
    assert run(bundled, FAMILIES[family], *WAYS["varlen in bfloat16"], forms=()).sends == []


@pytest.mark.parametrize("asked", ["classes", "vectors"])
def test_however_many_sequences_are_waited_for_once(bundled: Model, asked: str) -> None:
    """Pairs of several requests, or texts: one product, and one copy with whether all is finite."""
    weights = {name: torch.zeros(shape) for name, shape in expected_shapes(BERT).items()}
    with torch.inference_mode(), watched() as watch:
        way, dtype = WAYS["varlen in bfloat16"]
        built = build_encoder(BERT, weights.__getitem__, CUDA, dtype, way)
        head, mean = heads(BERT.width)[0], Outputs(Pooling(("mean",), normalize=True))
        outputs = [Outputs(task_heads=(replace(head),)) for _ in range(64)]
        works = [
            Work(Sequence([5] * (2 + i % 7)), each if asked == "classes" else mean)
            for i, each in enumerate(outputs)
        ]
        watch.forget()
        results = Lanes(replace(bundled, config=BERT, encoder=built), []).run_batch(works, 1)

    assert all(isinstance(one, Result) for one in results)
    assert watch.waits == [("service/engine/arrays.py", "to_array")]
    assert watch.products == [sum(map(len, works))] * 4 * LAYERS + [64] * (asked == "classes")


def _item(x: Tensor) -> object:
    return x.sum().item()


WAITING = {
    "a number": _item,
    "a copy": lambda x: x.cpu(),
    "a copy of another dtype": lambda x: x.to("cpu", torch.float64),
    "a choice by a mask": lambda x: x[x > 0],
    "a count": lambda x: x.long().flatten().bincount(),
}


@pytest.mark.parametrize("wait", WAITING.values(), ids=WAITING)
def test_a_new_wait_is_found_and_named(
    bundled: Model, monkeypatch: pytest.MonkeyPatch, wait: Callable[[Tensor], object]
) -> None:
    """The negative control: whatever asks the device for numbers inside the model."""

    def normalise(x: Tensor, *norm: Any) -> Tensor:
        wait(x)
        return kernels.normalise(x, *norm)

    monkeypatch.setattr(encoder, "normalise", normalise)

    found = run(bundled, BERT, *WAYS["varlen in bfloat16"], asked=1).waits

    assert set(found) - told() == {
        ("model/encoder.py", "Embeddings.__call__"),
        ("model/encoder.py", "Layer.normalise"),
    }


def test_what_lies_on_another_device_is_found(bundled: Model) -> None:
    """The negative control of devices: a table of the host's among the device's."""

    def host(weight: Tensor, bias: Tensor | None) -> PlainLinear:
        linear = PlainLinear(weight, bias)
        linear.bias = torch.zeros(len(weight))
        return linear

    with pytest.raises(AssertionError, match="device"):
        run(bundled, BERT, replace(VARLEN, linear=host), torch.bfloat16, asked=1)


def told() -> set[Place]:
    """The places that the table has."""
    rows = re.findall(r"^\| `(\w[\w/.]+\.py)` \| `([\w.]+)` \|", TABLE.read_text(), re.MULTILINE)
    return set(rows)
