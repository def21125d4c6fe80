"""All that a lane answers has the same bits on one core and on several: a lone request gets all.

MKL cuts a matrix of few rows in another way for each number of cores, strict or not: found on
AMD's Zen 4, with 2 to 22 rows on 2 cores.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from model import kernels
from model.config import Relative
from model.kernels import PLAIN, Linear
from model.loading import checkpoint
from model.loading.assembly import build_encoder, expected_shapes
from model.loading.checkpoint import Model
from model.maps.choices import Form
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.pooling import Dense, Pooling, identity
from model.probes import Maps, Why
from model.projection import Projection
from model.task_heads import Tagger, TaskHead
from service.engine.lanes import Lanes
from service.files.weights import BUNDLED_MODEL, locate_model
from service.shapes.work import Outputs, Result, Work
from tests.service.engine import test_gpu

CPU = torch.device("cpu")
LENGTHS = (12, 130)  # of the last one the second tile has two rows
BERT = replace(test_gpu.BERT, max_tokens=max(LENGTHS))
FAMILIES = {
    "bert": BERT,
    "rotary": replace(BERT, **test_gpu.ROTARY, key_heads=1),
    "relative": replace(
        BERT,
        positions="relative",
        relative=Relative(reach=8, furthest=64, by_query=True, by_key=True, norm=True),
    ),
}
WAYS = {"plain": PLAIN, "as served": kernels.ONEDNN or PLAIN}


def selections(tokens: int) -> Iterator[Selection]:
    """Every form, of one head alone and of several, with and without the special tokens."""
    special: dict[str, Any] = {"special": [True, *[False] * (tokens - 2), True]}
    marks: dict[str, Any] = {
        "cls": 0,
        "separators": (tokens - 1,),
        "rows": (1, 2),
        "segments": ((1,), (2,)),
    }
    for units in (divide_into_units(tokens), divide_into_units(tokens, specials="drop", **special)):
        for heads in ({1: (1,)}, {0: (0, 2), 1: (0, 1, 2)}):
            for form in get_args(Form):
                yield Selection(heads, units, form=form, k=2, size=3, **marks)
        yield Selection({1: (1,)}, units, form="top", k=2, weight="value_norm", **marks)
        yield Selection({0: (0, 1, 2)}, units, form="mean", averaged=True, **marks)


def heads(width: int, linear: Callable[..., Linear]) -> Iterator[TaskHead]:
    """What reads each token; of 7 and 12 classes MKL's bits move on Zen 4."""
    random = torch.Generator().manual_seed(0)
    for classes in (7, 12):
        weight = torch.randn(classes, width, generator=random)
        project = Projection(
            (Dense(linear(weight, torch.zeros(classes)), identity, classes, classes * width),)
        )
        yield Tagger(tuple(map(str, range(classes))), project)


@pytest.fixture(scope="module")
def bundled() -> Model:
    """A model whose encoder is put in place of."""
    return checkpoint.load_checkpoint(locate_model(BUNDLED_MODEL).folder, CPU, torch.float32, PLAIN)


def answers(result: object) -> list[bytes]:
    """The arrays of a result, as bytes."""
    assert isinstance(result, Result), result
    found = [result.pooled, result.tokens, *result.hidden.values(), *result.task.values()]
    if maps := result.made.get(Maps.name):
        found += [array for parts in maps["heads"].values() for array in parts.values()]
        found += maps.get("whole", {}).values()
    return [array.tobytes() for array in found if array is not None]


# The plain linears have no promise on many cores: the start proves what serves (see proof.py)
@pytest.mark.parametrize(
    ("family", "way", "cores"),
    [
        pytest.param("bert", "plain", 2, marks=pytest.mark.prove),
        ("bert", "as served", 2),
        ("rotary", "as served", 2),
        pytest.param("relative", "as served", 2, marks=pytest.mark.prove),
        ("relative", "as served", 8),
    ],
)
def test_every_answer_has_the_same_bits_on_one_core_and_on_several(
    bundled: Model, family: str, way: str, cores: int
) -> None:
    """Vectors, states, tokens, every form of attention, and heads that read each token."""
    config, draw = FAMILIES[family], torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=draw) for name, shape in expected_shapes(config).items()
    }
    with torch.inference_mode():
        encoder = build_encoder(config, weights.__getitem__, CPU, torch.float32, WAYS[way])
    lanes, ids = Lanes(replace(bundled, config=config, encoder=encoder), []), random.Random(0)
    moved, before = [], torch.get_num_threads()
    try:
        for tokens in LENGTHS:
            read = [ids.randrange(5, 97) for _ in range(tokens)]
            outputs = [Outputs(Pooling(("mean",), normalize=True), tokens=True)]
            outputs += [
                Outputs(probes=(Why(one) if one.form == "why" else Maps(one),))
                for one in selections(tokens)
            ]
            outputs += [
                Outputs(task_heads=(head,)) for head in heads(config.width, WAYS[way].linear)
            ]
            for one in outputs:
                single, both = (
                    lanes.run_batch([Work(Sequence(read), one)], threads)[0]
                    for threads in (1, cores)
                )
                if answers(single) != answers(both):
                    moved.append((tokens, one))
    finally:
        torch.set_num_threads(before)

    assert moved == []
