"""model/maps/forms.py: every form is what the full maps of transformers give, by brute force."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from model.attention.attention import TILE_QUERIES
from model.encoder import Encoded
from model.loading.checkpoint import Model
from model.maps import forms
from model.maps.choices import STATISTIC_FIELDS
from model.maps.forms import Selection
from model.maps.units import Units, divide_into_units
from model.packing import Sequence
from tests.model.loading.test_families import theirs
from tests.model.loads import load
from tests.model.small_tokenizer import save_small_tokenizer
from tests.multi_head import head_weights

CLOSE = 1e-5
ROLLED = 1e-6

Array = NDArray[np.float64]
Pair = tuple[PreTrainedModel, Model]

RANDOM = ("roberta", "mpnet", "deberta-v2", "gte", "modernbert", "qwen3", "gemma3_text")
MODELS = ["MiniLM", *RANDOM]


class Seen(NamedTuple):
    """forms.Shown with arrays."""

    heads: dict[int, dict[str, Any]]
    whole: dict[str, Any]


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, folder: Path, model: Model
) -> Callable[..., Pair]:
    """A model as transformers runs it, and as we do."""
    cache: dict[str, Pair] = {}

    def find(name: str) -> Pair:
        if name == "MiniLM" and name not in cache:
            bert = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
            cache[name] = bert.eval(), model
        if name not in cache:
            made, saved = theirs(name, max_position_embeddings=514), tmp_path_factory.mktemp(name)
            made.save_pretrained(saved)
            save_small_tokenizer(saved)
            cache[name] = made, load(saved)
        return cache[name]

    return find


def eager(model: PreTrainedModel, ids: list[int]) -> tuple[Array, list[Tensor]]:
    """All maps, (layers, heads, query, key), and what enters each layer, by transformers."""
    with torch.inference_mode():
        out = model(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    return torch.cat(out.attentions).double().numpy(), [s[0] for s in out.hidden_states]


def value_norms(ours: Model, layer: int, x: Tensor) -> Array:
    """||v_j W_h^O|| written out, (heads, key), from what enters the layer."""
    whole = ours.encoder.layers[layer]
    attention = whole.attention
    with torch.inference_mode():
        entered = whole.normalise(x, whole.norms.before)
        filled = torch.cat([entered, entered.new_zeros(16, x.shape[1])])
        shared = ours.config.shared_heads * attention.head_dim
        v = attention.project(filled)[: len(x), -shared:].view(len(x), -1, attention.head_dim)
        parts = v.repeat_interleave(attention.sharing, 1).transpose(0, 1)
        w = torch.stack([head_weights(attention, head).output for head in range(attention.heads)])
        return (parts @ w).norm(dim=-1).double().numpy()


def in_units(weights: Array, units: Units) -> Array:
    """Weights of tokens, (heads, query, key), as rows and columns of units."""
    member = np.zeros((len(units.spans), units.tokens))
    for unit, (first, last) in enumerate(units.spans):
        member[unit, first:last] = 1
    axis = list(units.axis)
    merged = (member @ weights @ member.T)[:, axis]
    total = merged[:, :, axis] if units.renormalize else merged
    return merged[:, :, axis] / total.sum(2, keepdims=True)


def random_units(tokens: int, level: str, specials: str, seed: int) -> Units:
    """Words of one to four tokens, special tokens at both ends and one in the middle."""
    dice = random.Random(seed)
    special = [i in (0, tokens - 1, tokens // 2) and tokens > 3 for i in range(tokens)]
    words, word = [], 0
    for i in range(tokens):
        word += dice.random() < 0.6
        words.append(None if special[i] else word)
    segments = [int(i > tokens // 2) for i in range(tokens)]
    return divide_into_units(
        tokens, level=level, specials=specials, words=words, segments=segments, special=special
    )  # type: ignore[arg-type]


def traced(ours: Model, batch: list[list[int]], *layers: int) -> Encoded:
    """A pass that keeps what some layers' maps are made of."""
    with torch.inference_mode():
        packed = ours.encoder.pack([Sequence(ids) for ids in batch])
        return ours.encoder(packed, traces=frozenset(layers))


def shown(encoded: Encoded, index: int, asked: Selection) -> Seen:
    """A form for one sequence of a batch, as numpy's arrays."""
    with torch.inference_mode():
        found = forms.show(encoded.traces, encoded.packed.rows(index), asked)
    heads = {
        layer: {name: tensor.numpy() for name, tensor in named.items()}
        for layer, named in found.heads.items()
    }
    return Seen(heads, {name: tensor.numpy() for name, tensor in found.whole.items()})


SHORT, LONG = [1, 2, 9, 40], [1, 2, 3, 17, 130, 512]
ACROSS = [1, 2, 9, TILE_QUERIES + 3]  # rows of two tiles, whose windows look into each other
TOKENS, WORDS = ("token", "keep"), ("word", "keep")
DROPPED, SCALED = ("token", "drop"), ("word", "renormalize")
FAST = [("MiniLM", *WORDS), ("roberta", *SCALED), ("mpnet", *TOKENS), ("qwen3", *DROPPED)]
FAST += [("deberta-v2", *TOKENS), ("gemma3_text", *SCALED)]
EVERY = [(name, *how) for name in MODELS for how in (TOKENS, WORDS, DROPPED, SCALED)]
CELLS = [
    *(pytest.param((*cell, SHORT), id="-".join(cell)) for cell in FAST),
    pytest.param(("modernbert", *TOKENS, ACROSS), id="modernbert-token-keep-across"),
    *(
        pytest.param((*cell, LONG), id="-".join((*cell, "long")), marks=pytest.mark.prove)
        for cell in EVERY
    ),
]


class Cell(NamedTuple):
    """One sequence of a mixed batch: its units, eager maps, what entered, and what we show."""

    units: Units
    maps: Array
    states: list[Tensor]
    ours: Model
    asked: Selection
    answer: Seen


Prepare = Callable[..., list[Cell]]


@pytest.fixture(scope="module")
def known() -> dict[tuple[Any, ...], Any]:
    """What transformers has computed, by model and token ids, and our passes, by lengths."""
    return {}


@pytest.fixture(params=CELLS)
def cell(
    request: pytest.FixtureRequest, pair: Callable[..., Pair], known: dict[tuple[Any, ...], Any]
) -> Prepare:
    """Sequences of several lengths in one batch; each form compared with transformers' maps."""
    name, level, specials, lengths = request.param
    model, ours = pair(name)
    dice = random.Random(5)
    batch = [[dice.randrange(5, 97) for _ in range(tokens)] for tokens in lengths]
    dice.shuffle(batch)
    layers = {0: (0, 2), 1: (1,), 3: (0, 1, 2)}

    if (passed := ("pass", name, *lengths)) not in known:
        known[passed] = traced(ours, batch, *layers)
    encoded = known[passed]

    def prepare(**form: Any) -> list[Cell]:
        found = []
        for index, ids in enumerate(batch):
            units = random_units(len(ids), level, specials, index)
            last = len(ids) - 1
            marks = {"cls": 0, "separators": (last,)} if len(ids) > 3 else {}
            if form["form"] == "rows":
                form["rows"] = tuple(dict.fromkeys((units.axis[-1], units.axis[0])))
            if form["form"] == "mean":  # two that are neither all units nor in order
                last, half = units.axis[-1:], len(units.axis) // 2
                form["segments"] = tuple(each for each in (last, units.axis[:half]) if each)
            asked = Selection(layers, units, **marks, **form)
            answer = shown(encoded, index, asked)
            if (name, *ids) not in known:
                known[name, *ids] = eager(model, ids)
            found.append(Cell(units, *known[name, *ids], ours, asked, answer))
        return found

    return prepare


def test_full_maps_are_transformers_own(cell: Prepare) -> None:
    """Tokens or words, special ones kept, dropped or made up for."""
    for units, maps, _, _, asked, answer in cell(form="full"):
        for layer, heads in asked.heads.items():
            wanted, found = in_units(maps[layer][list(heads)], units), answer.heads[layer]["map"]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)
            if units.renormalize or len(units.axis) == len(units.spans):
                np.testing.assert_allclose(found.sum(-1), 1, rtol=0, atol=CLOSE)


def test_rows_are_those_of_the_full_map(cell: Prepare) -> None:
    """The last unit and the first, in the order asked."""
    for units, maps, _, _, asked, answer in cell(form="rows"):
        places = [units.axis.index(unit) for unit in asked.rows]
        for layer, heads in asked.heads.items():
            wanted = in_units(maps[layer][list(heads)], units)[:, places]
            np.testing.assert_allclose(answer.heads[layer]["map"], wanted, rtol=0, atol=CLOSE)


def test_blocks_sum_keys_and_average_queries(cell: Prepare) -> None:
    """Blocks of ceil(units / size), the last one shorter; rows still sum to what they did."""
    for size in (3, 32):
        for units, maps, _, _, asked, answer in cell(form="blocks", size=size):
            step = math.ceil(len(units.axis) / size)
            at = range(0, len(units.axis), step)
            for layer, heads in asked.heads.items():
                full = in_units(maps[layer][list(heads)], units)
                wanted = [
                    [full[:, i : i + step, j : j + step].sum(2).mean(1) for j in at] for i in at
                ]
                found = np.moveaxis(answer.heads[layer]["map"], 0, 2)
                np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)


def segment_means(full: Array, units: Units, segments: tuple[tuple[int, ...], ...]) -> Array:
    """Sums over each segment's keys, means over its queries, of maps, (heads, query, key)."""
    at = [[units.axis.index(unit) for unit in segment] for segment in segments]
    means = [[full[:, i][:, :, j].sum(2).mean(1) for j in at] for i in at]
    return np.moveaxis(np.array(means), 2, 0)


@pytest.mark.parametrize("averaged", [False, True], ids=["each head", "mean of heads"])
def test_segments_look_at_each_other_as_the_full_map_says(cell: Prepare, averaged: bool) -> None:
    """By head or layer, and over all: sums over a segment's keys, means over its queries."""
    for units, maps, _, _, asked, answer in cell(form="mean", averaged=averaged):
        every = []
        for layer, heads in asked.heads.items():
            full = in_units(maps[layer][list(heads)], units)
            wanted = segment_means(
                full.mean(0, keepdims=True) if averaged else full, units, asked.segments
            )
            found = answer.heads[layer]["map"]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)
            every.extend(found)
        np.testing.assert_allclose(answer.whole["map"], np.mean(every, 0), rtol=0, atol=CLOSE)


AVERAGED: list[dict[str, Any]] = [
    {"form": "full"},
    {"form": "rows"},
    {"form": "blocks", "size": 3},
    {"form": "top", "k": 3},
]


@pytest.mark.parametrize("form", AVERAGED, ids=lambda form: form["form"])
def test_the_mean_of_heads_is_that_of_their_maps(cell: Prepare, form: dict[str, Any]) -> None:
    """One map a layer; the strongest keys are the mean's own."""
    for units, maps, _, _, asked, answer in cell(averaged=True, **form):
        for layer, heads in asked.heads.items():
            mean = in_units(maps[layer][list(heads)], units).mean(0, keepdims=True)
            found = answer.heads[layer]
            if form["form"] == "top":
                wanted = -np.sort(-mean, axis=2)[:, :, :3]
                np.testing.assert_allclose(found["values"], wanted, rtol=0, atol=CLOSE)
                rest = mean.sum(2) - wanted.sum(2)
                np.testing.assert_allclose(found["rest"], rest, rtol=0, atol=CLOSE)
                continue
            if form["form"] == "rows":
                mean = mean[:, [units.axis.index(unit) for unit in asked.rows]]
            if form["form"] == "blocks":
                step = math.ceil(len(units.axis) / 3)
                count = math.ceil(len(units.axis) / step)
                parts = [units.axis[i * step : (i + 1) * step] for i in range(count)]
                mean = segment_means(mean, units, tuple(parts))
            np.testing.assert_allclose(found["map"], mean, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("weight", ["probability", "value_norm"])
def test_the_strongest_keys_and_the_rest(cell: Prepare, weight: str) -> None:
    """By probability, or by the length of what a value adds as a share of its row."""
    for k in (3, 64):
        for units, maps, states, ours, asked, answer in cell(form="top", k=k, weight=weight):
            for layer, heads in asked.heads.items():
                full = in_units(weighted(maps, states, ours, layer, weight)[list(heads)], units)
                found, wanted = answer.heads[layer], -np.sort(-full, axis=2)[:, :, :k]
                np.testing.assert_allclose(found["values"], wanted, rtol=0, atol=CLOSE)
                rest = full.sum(2) - wanted.sum(2)
                np.testing.assert_allclose(found["rest"], rest, rtol=0, atol=CLOSE)
                there = np.take_along_axis(full, np.searchsorted(units.axis, found["keys"]), 2)
                np.testing.assert_allclose(there, found["values"], rtol=0, atol=CLOSE)


def weighted(maps: Array, states: list[Tensor], ours: Model, layer: int, weight: str) -> Array:
    """One layer's weights, (heads, query, key)."""
    if weight == "probability":
        return maps[layer]
    product: Array = maps[layer] * value_norms(ours, layer, states[layer])[:, None]
    return product


@pytest.mark.parametrize("weight", ["probability", "value_norm"])
def test_dominance_names_who_a_row_is_made_of(cell: Prepare, weight: str) -> None:
    """The largest share, the unit's own, and how many others each unit dominates."""
    for units, maps, states, ours, asked, answer in cell(form="dominance", weight=weight):
        wins = np.zeros(len(units.spans), dtype=int)
        axis = np.array(units.axis)
        for layer, heads in asked.heads.items():
            full = in_units(weighted(maps, states, ours, layer, weight)[list(heads)], units)
            found = answer.heads[layer]
            np.testing.assert_allclose(found["share"], full.max(2), rtol=0, atol=CLOSE)
            own = np.diagonal(full, axis1=1, axis2=2)
            np.testing.assert_allclose(found["own"], own, rtol=0, atol=CLOSE)
            places = np.searchsorted(axis, found["dominant"])[:, :, None]
            share = np.take_along_axis(full, places, 2)[:, :, 0]
            np.testing.assert_allclose(share, full.max(2), rtol=0, atol=CLOSE)
            others = found["dominant"][found["dominant"] != axis]
            wins += np.bincount(others, minlength=len(wins))
        np.testing.assert_array_equal(answer.whole["wins"], wins)


def test_statistics_are_those_of_the_full_map(cell: Prepare) -> None:
    """Each field written out with numpy in float64."""
    for units, maps, _, _, asked, answer in cell(form="stats"):
        for layer, heads in asked.heads.items():
            full = in_units(maps[layer][list(heads)], units)
            wanted = by_hand(full, units, asked.cls, asked.separators)
            found = dict(zip(STATISTIC_FIELDS, answer.heads[layer]["stats"].T, strict=True))
            for name, value in wanted.items():
                close = CLOSE * max(1.0, float(np.nanmax(np.nan_to_num(value))))  # of distances
                np.testing.assert_allclose(found[name], value, rtol=0, atol=close, err_msg=name)


@pytest.mark.parametrize("tokens", [67, TILE_QUERIES + 3])
def test_statistics_have_the_same_bits_on_any_cores_and_of_any_heads(
    model: Model, tokens: int
) -> None:
    """One core or two, all heads asked or some: a head's numbers are the same."""
    ids, cores = [5 + i for i in range(tokens)], torch.get_num_threads()
    every = {layer: tuple(range(12)) for layer in range(2)}

    def table(heads: dict[int, tuple[int, ...]], threads: int) -> Any:
        torch.set_num_threads(threads)
        asked = Selection(
            heads, divide_into_units(tokens), form="stats", cls=0, separators=(tokens - 1,)
        )
        return shown(traced(model, [ids], *heads), 0, asked).heads[1]["stats"]

    try:
        found, others, some = table(every, 1), table(every, 2), table({1: (3, 7, 11)}, 1)
    finally:
        torch.set_num_threads(cores)

    np.testing.assert_array_equal(others, found)
    np.testing.assert_array_equal(some, found[[3, 7, 11]])


def by_hand(full: Array, units: Units, cls: int | None, separators: tuple[int, ...]) -> Any:
    """The statistics of maps, (heads, query, key), each as its formula says."""
    count = full.shape[1]
    none = np.full(len(full), np.nan)
    first = None if cls is None else units.place_of_token(cls)
    seps = [p for p in map(units.place_of_token, separators) if p is not None]
    here = np.arange(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        plogp = np.where(full > 0, full * np.log(full), 0)
    entropy = -plogp.sum(2).mean(1)
    others = np.delete(full, seps, axis=2)

    def offset(o: int) -> Array:
        pairs = [(i, i + o) for i in here if 0 <= i + o < count]
        return np.mean([full[:, i, j] for i, j in pairs], axis=0) if pairs else none

    return {
        "self": offset(0),
        "previous": offset(-1),
        "next": offset(1),
        "cls": none if first is None else full[:, :, first].mean(1),
        "sep": full[:, :, seps].sum(2).mean(1) if seps else none,
        "entropy": entropy,
        "entropy_ratio": entropy / math.log(count) if count > 1 else none,
        "confidence": others.max(2).mean(1) if others.shape[2] else none,
        "distance": (full * abs(here[:, None] - here)).sum((1, 2)) / full.sum((1, 2)),
        "received_max": full.mean(1).max(1),
    }


def test_contribution_is_the_share_of_what_a_head_writes(pair: Callable[..., Pair]) -> None:
    """||z_i W_h^O|| over the sum of all heads' at that token, written out; shares sum to 1."""
    model, ours = pair("MiniLM")
    ids = [101, 2035, 2003, 2092, 102]
    maps, states = eager(model, ids)
    layer = model.encoder.layer[0].attention
    with torch.inference_mode():
        v = layer.self.value(states[0]).view(len(ids), 12, 32).transpose(0, 1)
        z = torch.tensor(maps[0]).float() @ v
        w = layer.output.dense.weight.T.view(12, 32, 384)
        lengths = (z @ w).norm(dim=-1)
    wanted = (lengths / lengths.sum(0)).mean(1)

    asked = Selection({0: tuple(range(12))}, divide_into_units(5), form="stats")
    answer = shown(traced(ours, [ids, [5] * 9], 0), 0, asked)

    found = answer.heads[0]["stats"][:, STATISTIC_FIELDS.index("contribution")]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)
    assert found.sum().item() == pytest.approx(1, abs=CLOSE)
    assert found.argmax() == 4 and found[4].item() == pytest.approx(0.13, abs=0.02)


def test_rollout_is_the_papers_formula(cell: Prepare) -> None:
    """R = (A + I) / 2 times the R before, from the mean of the heads asked."""
    for units, maps, _, _, asked, answer in cell(form="rollout"):
        rolled = np.eye(units.tokens)
        for layer, heads in asked.heads.items():
            mixed = maps[layer][list(heads)].mean(0) + np.eye(units.tokens)
            rolled = mixed / mixed.sum(1, keepdims=True) @ rolled
        wanted = in_units(rolled[None], units)[0]
        np.testing.assert_allclose(answer.whole["map"], wanted, rtol=0, atol=ROLLED)
