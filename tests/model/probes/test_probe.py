"""model/probes/probe.py: what every probe says of itself is so."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from model.kernels import PlainLinear
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.pooling import Dense, Pooling, identity
from model.probes import Maps, Parts, Probe, Readout, Sources, Steps, Targets, Why
from model.projection import Projection
from model.task_heads import Tagger
from tests.model.lessons.test_explain import TOKENS, WIDTH, drawn

IDS = [1 + place for place in range(TOKENS)]
MEAN = Pooling(("mean",), normalize=True)
DENSE = Dense(PlainLinear(torch.ones(3, WIDTH), None), identity, 3, 3 * WIDTH)
UNITS = divide_into_units(TOKENS)
SOURCES = Sources(range(1, TOKENS + 1), range(7), ("mean",))
# those whose arrays are answered as they are, then those that a question makes its answer of
ANSWERED: Mapping[str, Probe] = {
    "maps": Maps(Selection({0: (1,), 2: (0, 3)}, UNITS)),
    "the strongest keys": Maps(Selection({1: (1,)}, UNITS, "top", k=5, half=True)),
    "why, of what is embedded": Why(Selection({0: (1,)}, UNITS, "why", rows=(2, 7))),
    "parts": Parts([(0, 2), (3, 11)], MEAN),
    "steps": Steps(1),
}
OTHERS: Mapping[str, Probe] = {
    "sources": SOURCES,
    "targets": Targets(torch.ones(5, WIDTH), ("mean",)),
    "readout": Readout(Tagger((), Projection((DENSE,))), torch.ones(5, 3), (1, 2, 3, 5, 7)),
}


def tensors(made: Any) -> Iterator[Tensor]:
    """Those that a probe made."""
    if isinstance(made, Tensor):
        yield made
        return
    for each in made.values():
        yield from tensors(each)


@torch.inference_mode()
def run(probe: Probe) -> list[Tensor]:
    """What a probe makes of the second sequence of a batch, of which the pass kept what it says."""
    encoder, sequence = drawn("bert"), Sequence(IDS)
    packed = encoder.pack([Sequence([1] * 3), sequence])
    encoded = encoder(packed, hidden=frozenset(probe.states), traces=frozenset(probe.traces))
    return list(tensors(probe.run(encoder, encoded, packed.rows(1), sequence)))


@pytest.mark.parametrize("probe", OTHERS.values(), ids=OTHERS)
def test_no_more_of_the_pass_is_kept_than_a_probe_names(probe: Probe) -> None:
    """Neither a state nor a trace, for those that run the sequence again; they make something."""
    assert run(probe) and not probe.states and not probe.traces


@pytest.mark.parametrize("probe", ANSWERED.values(), ids=ANSWERED)
def test_a_probe_weighs_what_it_makes(probe: Probe) -> None:
    """To the byte, by the parts of an answer together."""
    weighed = probe.bytes(drawn("bert").config, TOKENS)

    assert sum(each.nbytes for each in run(probe)) == sum(weighed.values())


@pytest.mark.parametrize("probe", [*ANSWERED.values(), *OTHERS.values()])
def test_a_probe_takes_at_least_its_products(probe: Probe) -> None:
    """The time of a lane, in operations, is not less than those that are published."""
    config = drawn("bert").config

    assert probe.cost(config, TOKENS) >= probe.flops(config, TOKENS) >= 0
    assert probe.cost(config, TOKENS) > 0


def test_what_two_probes_make_has_two_names() -> None:
    """But for the scores' parts, which are a form of attention."""
    names = [kind.name for kind in (Maps, Parts, Readout, Sources, Steps, Targets)]

    assert len({*names}) == len(names) and Why.name == Maps.name
