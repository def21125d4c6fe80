"""service/pipeline/cost.py: what each form takes, in time and in memory, is what its price says.

Time is the thread's own, which other work on the machine hardly lengthens; memory is the most that
the process came to hold. Lengths are four times one another: a price whose exponent is wrong by one
is wrong by a factor of 16 between the first and the last.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import EncoderConfig
from model.maps.choices import Level, Specials
from model.maps.forms import Selection
from model.maps.tiles import MOST_CELLS
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.pooling import Pooling
from model.probes import Maps, Parts, Sources, Steps, Why
from service.engine.lanes import Lanes
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import BUNDLED_MODEL, ModelSource, locate_model
from service.pipeline.cost import make_cost_counter
from service.questions.carried import TILE_ROWS
from service.questions.encode.question import weigh_answer
from service.shapes.price import Layout
from service.shapes.work import Outputs, Work

SHORT, LONG = (80, 320, 1280), (256, 1024, 4096)
SQUARE = 2048  # tokens whose square is more than what any batch takes of its lane
HEADS = (0, 5, 7)
WIDE = EncoderConfig(
    family="wide",
    vocabulary=30522,  # the bundled tokenizer's
    width=384,
    layers=2,
    heads=12,
    feed_forward=384,
    max_tokens=max(LONG),
    norm_eps=1e-12,
    embedding_width=384,
)
MOST = 3.0  # times what the price says, of growth and in all: processors differ by less than that
CLOSELY = 1.5  # times what the price says of two batches of one length
CLOSE = 1.1  # the same of bytes
CELL_BYTES = 64  # of a tile, at most: its scores, its values, and how they are ordered
ROOM = 8 << 20  # bytes by which two equal peaks may differ
NUMBER = 4  # bytes of a float32
MEAN = Pooling(("mean",), normalize=True)

Way = Callable[[int], Outputs]


def shown(form: Any, level: Level = "token", specials: Specials = "keep", **more: Any) -> Way:
    """What to show of a sequence of so many tokens, in words of two."""

    def outputs(tokens: int) -> Outputs:
        special = [place in (0, tokens - 1) for place in range(tokens)]
        words = [None if alone else place // 2 for place, alone in enumerate(special)]
        units = divide_into_units(
            tokens, level=level, specials=specials, words=words, special=special
        )
        chosen = HEADS[:1] if form == "rollout" else HEADS
        rows = units.axis[: more.get("rows", 0)]
        asked = {layer: chosen for layer in range(WIDE.layers)}
        others = {name: value for name, value in more.items() if name != "rows"}
        if form == "mean":
            half = len(units.axis) // 2
            others["segments"] = units.axis[:half], units.axis[half:]
        selection = Selection(
            asked, units, form, rows=rows, cls=0, separators=(tokens - 1,), **others
        )
        return Outputs(probes=(Maps(selection),))

    return outputs


def spans(tokens: int) -> Outputs:
    """Every token and its neighbour as a part."""
    return Outputs(probes=(Parts([(place, place + 2) for place in range(tokens - 1)], MEAN),))


def why(layer: int) -> Way:
    """The parts of scores, of as many sources as a work carries."""

    def outputs(tokens: int) -> Outputs:
        units, count = divide_into_units(tokens), max(1, TILE_ROWS // tokens)
        shown = Selection({layer: HEADS}, units, "why", rows=(1, 2))
        sources = Sources(range(1, tokens + 1), range(count), layers=layer)
        return Outputs(probes=(Why(shown, sources if layer else None),))

    return outputs


WORDS: dict[str, Any] = {"level": "word"}
SCALED: dict[str, Any] = {"level": "word", "specials": "renormalize"}
WAYS: dict[str, Way] = {
    "full": shown("full"),
    "full, float16": shown("full", half=True),
    "full, words": shown("full", **WORDS),
    "full, renormalized": shown("full", specials="renormalize"),
    "a row": shown("rows", rows=1),
    "rows": shown("rows", rows=60),
    "a row, renormalized": shown("rows", rows=1, **SCALED),
    "top": shown("top"),
    "top by values": shown("top", weight="value_norm"),
    "top, words": shown("top", **SCALED),
    "top, of many": shown("top", k=1000),
    "blocks": shown("blocks"),
    "blocks, words": shown("blocks", **SCALED),
    "means": shown("mean"),
    "means, words": shown("mean", **SCALED),
    "full, of the mean": shown("full", averaged=True),
    "full, of the mean, words": shown("full", averaged=True, **WORDS),
    "top, of the mean": shown("top", averaged=True),
    "means, of the mean": shown("mean", averaged=True),
    "stats": shown("stats"),
    "stats, words": shown("stats", **WORDS),
    "dominance by probability": shown("dominance"),
    "dominance by values": shown("dominance", weight="value_norm"),
    "dominance, words": shown("dominance", weight="value_norm", **SCALED),
    "rollout": shown("rollout"),
    "rollout, float16": shown("rollout", half=True),
    "rollout, words": shown("rollout", **WORDS),
    "rollout, renormalized": shown("rollout", specials="renormalize"),
    "spans": spans,
    "hidden states": lambda tokens: Outputs(tokens=True, hidden=frozenset({0, 1})),
    "an explained layer": lambda tokens: Outputs(probes=(Steps(1),)),
    "carried sources": lambda tokens: Outputs(
        probes=(Sources(range(1, tokens + 1), range(8), ("mean",)),)
    ),
    "a kept layer": lambda tokens: Outputs(kept=frozenset({0, 1})),
    "why": why(0),
    "why, of carried sources": why(1),
}
LENGTHS = [
    pytest.param(SHORT, id="short"),
    pytest.param(LONG, id="long", marks=pytest.mark.prove),
]
# other sums weigh what is explained, carried or kept; what a top of few keys takes beyond the pass
# differs by run, from 20 to 400 MB of 3 heads at 4,096 tokens, perhaps by holes in the heap
UNWEIGHED = (
    "an explained layer",
    "carried sources",
    "why",
    "why, of carried sources",
    "a kept layer",
    "top",
    "top by values",
    "top, words",
)
OFTEN = ("full", "rollout")  # what else is here is for `make prove`
TIMED = [
    pytest.param(way, id=name, marks=() if name in OFTEN else pytest.mark.prove)
    for name, way in WAYS.items()
]
WEIGHED = [
    pytest.param(way, id=name, marks=() if name == "rollout" else pytest.mark.prove)
    for name, way in WAYS.items()
    if name not in UNWEIGHED
]


@pytest.fixture(scope="module")
def lanes() -> Iterator[Lanes]:
    """One lane of one core, in the thread that calls it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = load_model(
        ModelSource(locate_model(BUNDLED_MODEL).folder, "wide", preset=WIDE),
        torch.device("cpu"),
        torch.float32,
    )
    use_compiled_pass(model)
    with ThreadPoolExecutor(1) as thread:
        yield Lanes(model, [thread])
    torch.set_num_threads(threads)


def work(tokens: int, outputs: Outputs) -> Work:
    """A sequence of so many tokens, and what is wanted of it."""
    return Work(Sequence([1000 + 7 * place % 20_000 for place in range(tokens)]), outputs)


def seconds(lanes: Lanes, works: list[Work], rounds: int) -> float:
    """What a batch takes of its thread at its fastest."""
    fastest = float("inf")
    for _ in range(rounds):
        start = time.thread_time()
        (result, *_) = lanes.run_batch(works, 1)
        fastest = min(fastest, time.thread_time() - start)
        assert not isinstance(result, Exception)
    return fastest


@pytest.fixture(scope="module")
def token(lanes: Lanes) -> float:
    """Seconds of a token, as a replica measures them at its start."""
    return seconds(lanes, [work(64, Outputs())] * 8, 20) / (8 * 64)


@pytest.mark.prove
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("way", TIMED)
def test_time_grows_as_the_price_says(
    lanes: Lanes, token: float, way: Way, lengths: tuple[int, ...]
) -> None:
    """And is what the price says, at the speed that admission plans with."""
    of = make_cost_counter(WIDE)

    asked = [work(tokens, way(tokens)) for tokens in lengths]
    taken = [seconds(lanes, [one], 3) for one in asked]
    priced = [one * token for one in of(asked)]

    assert taken[2] / taken[0] <= MOST * priced[2] / priced[0]
    assert max(took / said for took, said in zip(taken, priced, strict=True)) <= MOST


@pytest.mark.parametrize("tokens", [1, pytest.param(64, marks=pytest.mark.prove)])
@pytest.mark.parametrize("edit", ["gates", "patches"])
def test_what_is_done_to_heads_takes_what_the_price_says(
    lanes: Lanes, edit: str, tokens: int
) -> None:
    """All heads of a short text can take longer than its pass."""
    value = 0.5 if edit == "gates" else torch.zeros(tokens, WIDE.head_dim)
    heads = {layer: dict.fromkeys(range(WIDE.heads), value) for layer in range(WIDE.layers)}
    changes: dict[str, Any] = {edit: heads}
    plain = [work(tokens, Outputs()) for _ in range(32)]
    changed = [
        replace(
            one, sequence=replace(one.sequence, **changes), edited_heads=WIDE.heads * WIDE.layers
        )
        for one in plain
    ]

    taken = seconds(lanes, changed, 4) / seconds(lanes, plain, 4)
    of = make_cost_counter(WIDE)
    assert taken <= CLOSELY * sum(of(changed)) / sum(of(plain))


@pytest.mark.prove
@pytest.mark.parametrize("way", WEIGHED)
def test_memory_is_what_the_price_says(lanes: Lanes, way: Way) -> None:
    """But for what any batch takes of its lane: traces by its tokens, and tiles, which are bounded.

    It is asked at two lengths, of which the last tells: its square is more than these.
    """
    lanes.run_batch([work(SHORT[0], way(SHORT[0]))], 1)  # what is loaded when it is first used
    for tokens in (SHORT[1], SQUARE):
        plain, asked = work(tokens, Outputs()), work(tokens, way(tokens))
        shown = asked.outputs.probe(Maps)
        heads = max(map(len, shown.selection.heads.values())) if shown else 0
        traces = 4 * NUMBER * WIDE.width * len(asked.outputs.traces) * tokens
        made = weigh_answer([asked], WIDE, Layout()).made

        taken = peak(lanes, asked) - peak(lanes, plain)

        assert taken <= CLOSE * (made + traces) + heads * MOST_CELLS * CELL_BYTES + ROOM


def peak(lanes: Lanes, one: Work) -> int:
    """Bytes that a work adds to the process at most, the least of two times."""
    return min(_peak(lanes, one) for _ in range(2))


def _peak(lanes: Lanes, one: Work) -> int:
    ctypes.CDLL(None).malloc_trim(0)  # what is free
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    (result,) = lanes.run_batch([one], 1)
    assert not isinstance(result, Exception)
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """One of this process's figures, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
