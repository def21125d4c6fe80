"""POST /v1/encode over HTTP: attention in every form, and heads gated."""

import asyncio
import base64
import copy
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load
from transformers import BertModel

from model import kernels
from model.maps.choices import STATISTIC_FIELDS
from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.replica import Replica
from service.shapes.answer import SAFETENSORS
from service.shapes.work import Result, Work
from service.tables.settings import Settings
from tests.conftest import posted
from tests.task_heads import checkpoint

Array = NDArray[Any]
Gate = tuple[int, int, float]  # layer, head, scale

CLOSE = 1e-5
HEAD = 32  # channels of one head
WELL = "All is well"
DOG = "A dog ate the food because it was hungry"
PAIR = {"text": "Unbelievable headlights", "pair": "They outshine the tokenizers"}
TEXTS: list[Any] = [DOG, PAIR, "Headlights dazzle"]
EVERY = [*TEXTS, {"token_ids": [101, 2035, 2003, 102, 2092, 102]}]
LAYERS = {"0": (5,), "5": (2, 11)}
CHOSEN = {"heads": {"5": [11, 2], "0": [5]}}

FORMS: dict[str, dict[str, Any]] = {
    "full": {},
    "rows": {"form": "rows", "rows": [2, 1]},
    "top": {"form": "top", "k": 3},
    "top by value": {"form": "top", "k": 99, "weight": "value_norm"},
    "blocks": {"form": "blocks", "size": 3},
    "one block": {"form": "blocks", "size": 10**330},
    "means": {"form": "mean", "segments": [[2, 3], [1, 2]]},
    "mean of heads": {"heads": "mean", "layers": [0, 5]},
    "top, mean of heads": {"form": "top", "k": 3, "heads": "mean", "layers": [5, 0]},
    "means, mean of heads": {"form": "mean", "segments": [[1, 2], [2, 3]], "heads": "mean"},
    "stats": {"form": "stats"},
    "dominance": {"form": "dominance"},
    "rollout": {"form": "rollout"},
}
UNITS: dict[str, dict[str, Any]] = {
    "tokens": {},
    "tokens less specials": {"specials": "drop"},
    "tokens among themselves": {"specials": "renormalize"},
    "words": {"level": "word"},
    "words less specials": {"level": "word", "specials": "drop"},
    "words among themselves": {"level": "word", "specials": "renormalize"},
}
WAYS: dict[str, dict[str, Any]] = {
    "tokens": {},
    "float16": {"dtype": "float16"},
    "tokens less specials": UNITS["tokens less specials"],
    "words": UNITS["words"],
    "words among themselves, float16": {**UNITS["words among themselves"], "dtype": "float16"},
}


async def encode(client: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a request that must succeed."""
    return await posted(client, "/v1/encode", asked)


async def attention(client: httpx.AsyncClient, text: str, **asked: Any) -> dict[str, Any]:
    """What is shown of one text's attention."""
    answer = await encode(client, {"inputs": [text], "attention": asked})
    found: dict[str, Any] = answer["data"][0]["attention"]
    return found


def described(body: bytes) -> dict[str, Any]:
    """The JSON in a safetensors answer."""
    size = int.from_bytes(body[:8], "little")
    told: dict[str, Any] = json.loads(json.loads(body[8 : 8 + size])["__metadata__"]["headlight"])
    return told


def numbers(told: Any) -> Array:
    """An array of JSON's numbers; null is NaN."""
    array = np.array(told)
    return array.astype(float) if array.dtype == object else array


def decoded(told: dict[str, Any]) -> Array:
    """An array of base64."""
    little = np.dtype(told["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(told["data"]), little).reshape(told["shape"])


def place(told: dict[str, Any], name: str, read: Callable[[Any], Array]) -> Array:
    """What an attention answer has in JSON under a name of safetensors."""
    match name.split("."):
        case ["rollout"] | ["mean"]:
            return read(told["map"])
        case ["dominance", "wins"]:
            return read(told["wins"])
        case ["stats", layer]:
            return np.stack([read(one) for one in told["stats"]["values"][layer].values()])
        case ["dominance", layer, head, column]:
            column = column.replace("tokens", "token")
            records = told["dominance"][layer][head]
            listed = isinstance(records, list)
            return read([one[column] for one in records] if listed else records[column])
        case ["attention", layer, head, column]:
            return read(told["edges"][layer][head][column])
        case ["attention", layer, head]:
            return read(told["maps"][layer][head])
    raise KeyError(name)


def shapes(form: str, units: int, whole: int) -> dict[str, tuple[int, ...]]:
    """The arrays of a form and their shapes, for so many units shown, so many in all."""
    asked = FORMS[form]
    k, blocks = min(asked.get("k", 0), units), -(-units // -(-units // asked.get("size", 1)))
    of_head: dict[str, dict[str, tuple[int, ...]]] = {
        "full": {"attention.{}": (units, units)},
        "rows": {"attention.{}": (2, units)},
        "blocks": {"attention.{}": (blocks, blocks)},
        "mean": {"attention.{}": (2, 2)},
        "top": {
            "attention.{}.keys": (units, k),
            "attention.{}.values": (units, k),
            "attention.{}.rest": (units,),
        },
        "dominance": {
            f"dominance.{{}}.{name}": (units,) for name in ("tokens", "dominant", "share", "own")
        },
    }
    kind = asked.get("form", "full")
    of_layers: dict[str, tuple[Any, ...]] = {**LAYERS}
    if "heads" in asked:
        every = asked.get("layers", range(6))
        of_layers = {str(layer): ("mean",) for layer in every}
    found = {
        name.format(f"{layer}.{head}"): shape
        for name, shape in of_head.get(kind, {}).items()
        for layer, heads in of_layers.items()
        for head in heads
    }
    if kind == "mean":
        found["mean"] = (2, 2)
    if kind == "stats":
        found = {
            f"stats.{layer}": (len(heads), len(STATISTIC_FIELDS)) for layer, heads in LAYERS.items()
        }
    if kind == "dominance":
        found["dominance.wins"] = (whole,)
    return {"rollout": (units, units)} if kind == "rollout" else found


def facts(item: dict[str, Any]) -> dict[str, Any]:
    """An item of a JSON answer without its arrays."""
    arrays = {"pooled", "maps", "edges", "values", "dominance", "wins", "map"}
    return {
        name: facts(value) if isinstance(value, dict) else value
        for name, value in item.items()
        if name not in arrays
    }


# each form in the way that has all of a level, specials and a dtype, and in one other, in turn;
# `make prove` tries every form in every way
OFTEN = {
    (form, way)
    for place, form in enumerate(FORMS)
    for way in ([*WAYS][place % (len(WAYS) - 1)], [*WAYS][-1])
}


@pytest.mark.parametrize(
    ("form", "way"),
    [
        pytest.param(form, way, marks=() if (form, way) in OFTEN else pytest.mark.prove)
        for form in FORMS
        for way in WAYS
    ],
)
async def test_json_base64_and_safetensors_carry_the_same_bits_and_weigh_what_usage_says(
    client: httpx.AsyncClient, form: str, way: str
) -> None:
    """For inputs of several lengths in one request: names, shapes, dtypes, facts, price."""
    inputs = TEXTS if "words" in way else EVERY
    asked = {"inputs": inputs, "attention": {**CHOSEN, **FORMS[form], **WAYS[way]}}

    plain = await encode(client, asked)
    packed = await encode(client, {**asked, "encoding": "base64"})
    file = await client.post("/v1/encode", json=asked, headers={"accept": SAFETENSORS})

    tensors, told = load(file.content), described(file.content)
    integers = {"tokens", "dominant", "keys", "wins"}
    weight, names = 0, set()
    for index, item in enumerate(plain["data"]):
        whole = len(item["attention"].get("spans", item["tokens"]))
        units = len(item["attention"].get("axis", range(whole)))
        for name, shape in shapes(form, units, whole).items():
            array = tensors[f"{index}.{name}"]
            in_base64 = place(packed["data"][index]["attention"], name, decoded)
            kind = "int32" if name.split(".")[-1] in integers else WAYS[way].get("dtype", "float32")
            assert (array.shape, array.dtype, in_base64.dtype) == (shape, kind, kind)
            assert array.tobytes() == in_base64.tobytes()
            in_json = place(item["attention"], name, numbers).astype(array.dtype)
            np.testing.assert_array_equal(in_json, array)
            weight, names = weight + array.nbytes, names | {f"{index}.{name}"}
        if form == "stats":  # whose rows have no names of their own in a file
            heads = told["data"][index]["attention"]["stats"].pop("heads")
            assert heads == {layer: [*numbers] for layer, numbers in LAYERS.items()}
        assert told["data"][index] == facts(item)
    assert tensors.keys() - names == {f"{index}.pooled" for index in range(len(inputs))}
    assert {answer["usage"]["attention_bytes"] for answer in (plain, packed, told)} == {weight}


async def test_the_mean_of_heads_is_that_of_the_maps_answered(client: httpx.AsyncClient) -> None:
    """Of whole maps, some rows and blocks, of inputs of several lengths."""
    for form in ({}, {"form": "rows", "rows": [2, 1]}, {"form": "blocks", "size": 3}):
        every = (await encode(client, {"inputs": EVERY, "attention": form}))["data"]
        mean = (await encode(client, {"inputs": EVERY, "attention": {**form, "heads": "mean"}}))[
            "data"
        ]
        for whole, item in zip(every, mean, strict=True):
            assert [*item["attention"]["maps"]] == [*map(str, range(6))]
            for layer, heads in whole["attention"]["maps"].items():
                (found,) = item["attention"]["maps"][layer].values()
                wanted = np.mean([*heads.values()], 0)
                np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("level", UNITS)
async def test_how_much_b_looks_at_a_is_the_mean_of_the_maps_answered(
    client: httpx.AsyncClient, level: str
) -> None:
    """By head, by layer and over all: A and B are the texts of a pair, special tokens apart."""
    how = UNITS[level]
    (whole,) = (await encode(client, {"inputs": [PAIR], "attention": how}))["data"]
    told = whole["attention"]
    axis = told.get("axis", range(len(told.get("spans", whole["tokens"]))))
    first = [start for start, _ in told.get("spans", [[i, i] for i in range(len(whole["tokens"]))])]
    text = [whole["special"][first[unit]] * 2 + whole["segments"][first[unit]] for unit in axis]
    a, b = ([place for place, one in enumerate(text) if one == which] for which in (0, 1))

    asked = {"form": "mean", **how}
    (by_head,) = (await encode(client, {"inputs": [PAIR], "attention": asked}))["data"]
    (by_layer,) = (
        await encode(client, {"inputs": [PAIR], "attention": {**asked, "heads": "mean"}})
    )["data"]

    ends = [[axis[units[0]], axis[units[-1]] + 1] for units in (a, b)]
    assert by_head["attention"]["segments"] == by_layer["attention"]["segments"] == ends
    looks: list[float] = []
    for layer, heads in told["maps"].items():
        numbers = [np.array(rows)[np.ix_(b, a)].sum(1).mean() for rows in heads.values()]
        found = [rows[1][0] for rows in by_head["attention"]["maps"][layer].values()]
        assert found == pytest.approx(numbers, abs=1e-6)
        mean = by_layer["attention"]["maps"][layer]["mean"][1][0]
        assert mean == pytest.approx(np.mean(numbers), abs=1e-6)
        looks.extend(numbers)
    for item in (by_head, by_layer):
        assert item["attention"]["map"][1][0] == pytest.approx(np.mean(looks), abs=1e-6)


async def test_segments_and_means_agree_with_transformers(client: httpx.AsyncClient) -> None:
    """Its eager attentions, averaged by numpy in float64."""
    model = BertModel.from_pretrained(
        locate_model(BUNDLED_MODEL).folder, attn_implementation="eager"
    ).eval()
    asked = {"form": "mean", "segments": [[7, 8], [1, 3]], "heads": "mean"}

    (item,) = (await encode(client, {"inputs": [DOG], "attention": asked}))["data"]

    with torch.inference_mode():
        eager = model(torch.tensor([item["token_ids"]]), output_attentions=True).attentions
    maps = torch.cat(eager).double().numpy()  # (layers, heads, query, key)
    wanted = maps[:, :, 7, 1:3].sum(-1).mean(1)
    found = [of_layer["mean"][0][1] for of_layer in item["attention"]["maps"].values()]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=CLOSE)
    assert item["attention"]["map"][0][1] == pytest.approx(wanted.mean(), abs=CLOSE)


async def test_showing_attention_changes_no_bit_of_the_pooled_vector(
    client: httpx.AsyncClient,
) -> None:
    """In none of the forms, for none of the inputs."""
    asked = {"inputs": EVERY, "encoding": "base64"}
    alone = (await encode(client, asked))["data"]

    for form in FORMS.values():
        shown = (await encode(client, {**asked, "attention": form}))["data"]
        assert [item["pooled"] for item in shown] == [item["pooled"] for item in alone]


@pytest.mark.parametrize("units", UNITS)
async def test_rows_and_columns_are_those_of_the_units_asked_for(
    client: httpx.AsyncClient, units: str
) -> None:
    """Words: sums over keys, means over queries; without specials: as they are, or scaled."""
    how = UNITS[units]
    asked = {"inputs": TEXTS, "attention": {**CHOSEN, **how}}
    tokens = (await encode(client, {"inputs": TEXTS, "attention": CHOSEN}))["data"]

    shown = (await encode(client, asked))["data"]

    for item, plain in zip(shown, tokens, strict=True):
        told, special = item["attention"], item["special"]
        spans = told.get("spans", [[i, i + 1] for i in range(len(special))])
        axis = told.get("axis", list(range(len(spans))))
        assert [i for span in spans for i in range(*span)] == list(range(len(special)))
        if "level" in how:
            words = list(zip(item.get("segments", special), item["words"], special, strict=True))
            assert all(len({words[i] for i in range(*span)}) == 1 for span in spans)
            assert len(spans) == len({word for word in words if not word[2]}) + sum(special)
        kept = "specials" not in how
        assert axis == [i for i, (first, _) in enumerate(spans) if kept or not special[first]]
        member = np.array(
            [[first <= i < last for i in range(len(special))] for first, last in spans]
        )
        for name in ("attention.0.5", "attention.5.2", "attention.5.11"):
            full, found = (place(one["attention"], name, numbers) for one in (plain, item))
            mean = (member @ full @ member.T / member.sum(1, keepdims=True))[np.ix_(axis, axis)]
            scale = mean.sum(1, keepdims=True) if how.get("specials") == "renormalize" else 1
            np.testing.assert_allclose(found, mean / scale, rtol=0, atol=CLOSE)
            assert (found.sum(1).max() < 1 - 1e-3) == (how.get("specials") == "drop")


async def test_rows_count_the_units_shown(client: httpx.AsyncClient) -> None:
    """Row 2 of words is the second word's, its number in the text whatever is left out."""
    how = {"level": "word", "specials": "drop", **CHOSEN}

    full = await attention(client, "Headlights dazzle", **how)
    rows = await attention(client, "Headlights dazzle", form="rows", rows=[2], **how)

    assert (full["axis"], rows["rows"]) == ([1, 2], [2])
    assert len(full["spans"]) == 4 and max(last - first for first, last in full["spans"]) > 1
    assert rows["maps"]["5"]["11"][0] == pytest.approx(full["maps"]["5"]["11"][1], abs=CLOSE)


@pytest.mark.parametrize(
    ("heads", "by_layer"),
    [
        ("L5H11", {"5": [11]}),
        (["L5H11"], {"5": [11]}),
        (["L5H11", "L0H5", "L5H2"], {"0": [5], "5": [2, 11]}),
        (["L5H11", "L0", "L0H5"], {"0": [*range(12)], "5": [11]}),
    ],
    ids=["one", "a list", "of two layers", "a whole layer"],
)
async def test_heads_are_named_as_papers_write_them(
    client: httpx.AsyncClient, heads: Any, by_layer: dict[str, list[int]]
) -> None:
    """And choose their layers, as when they are listed by layer."""
    named = await attention(client, WELL, heads=heads)

    assert named == await attention(client, WELL, heads=by_layer)


async def test_float16_is_the_nearest_to_float32_and_its_rows_still_sum_to_one(
    client: httpx.AsyncClient,
) -> None:
    """To 1e-3, of the longest sequence."""
    inputs = [{"token_ids": [101, *range(2000, 2254), 102]}]

    found = []
    for dtype in ("float32", "float16"):
        asked = {"inputs": inputs, "attention": {**CHOSEN, "dtype": dtype}}
        told = (await encode(client, asked))["data"][0]["attention"]
        found.append(place(told, "attention.5.11", numbers).astype(dtype))

    full, half = found
    np.testing.assert_array_equal(full.astype(np.float16), half)
    np.testing.assert_allclose(half.astype(float).sum(1), 1, rtol=0, atol=1e-3)


async def test_a_statistic_of_nothing_is_null_in_json_and_nan_in_binary(
    client: httpx.AsyncClient,
) -> None:
    """One token has no neighbour, no [CLS], and nothing to be uncertain about."""
    asked = {"inputs": [{"token_ids": [7]}], "attention": {"form": "stats", **CHOSEN}}

    told = (await encode(client, asked))["data"][0]["attention"]["stats"]
    file = await client.post("/v1/encode", json=asked, headers={"accept": SAFETENSORS})

    found = dict(zip(told["fields"], told["values"]["5"]["11"], strict=True))
    missing = {"previous", "next", "cls", "sep", "entropy_ratio"}
    assert {name for name in found if found[name] is None} == missing
    nan = np.isnan(load(file.content)["0.stats.5"][1])
    assert {name for name, none in zip(STATISTIC_FIELDS, nan, strict=True) if none} == missing
    known = [found[name] for name in ("self", "entropy", "distance")]
    assert known == [1, pytest.approx(0, abs=1e-6), 0]


@pytest.mark.parametrize(
    "given",
    [{"text": "\u2603"}, {"text": "a [MASK] or [PAD] of \u2603"}, PAIR],
    ids=["unknown", "added", "pair"],
)
async def test_token_ids_are_special_where_those_of_their_text_are(
    client: httpx.AsyncClient, given: dict[str, str]
) -> None:
    """What the tokenizer puts around texts is; [UNK], [MASK] and [PAD] are not, text or ids."""
    how = {"attention": {"specials": "drop", **CHOSEN}}
    text = (await encode(client, {"inputs": [given], **how}))["data"][0]
    ids = {"token_ids": text["token_ids"], "token_type_ids": text.get("segments")}

    found = (await encode(client, {"inputs": [ids], **how}))["data"][0]

    assert found["special"] == text["special"] and not all(found["special"])
    assert (found["attention"], found["pooled"]) == (text["attention"], text["pooled"])


async def test_embeddings_show_their_attention_without_a_token_known(
    client: httpx.AsyncClient,
) -> None:
    """What is said of special tokens is null; the rest is as ever."""
    embeddings = torch.randn(5, 384, generator=torch.Generator().manual_seed(0)).tolist()
    asked = {"inputs": [{"embeddings": embeddings}], "attention": {"form": "stats", **CHOSEN}}

    told = (await encode(client, asked))["data"][0]

    found = dict(zip(STATISTIC_FIELDS, told["attention"]["stats"]["values"]["0"]["5"], strict=True))
    assert told["tokens"] is None
    assert {name for name, value in found.items() if value is None} == {"cls", "sep"}


async def test_well_is_dominated_by_all(client: httpx.AsyncClient) -> None:
    """ "All is well", L0H5: .618 of the row, .72 of what its values add, .01 its own."""
    head = {"heads": {"0": [5]}}
    all_, well = 1, 3  # [CLS] all is well [SEP]

    rows = await attention(client, WELL, form="rows", rows=[well], level="word", **head)
    top = await attention(client, WELL, form="top", k=1, **head)
    dominance = await attention(client, WELL, form="dominance", **head)

    assert rows["maps"]["0"]["5"][0][all_] == pytest.approx(0.618, abs=0.01)
    assert top["edges"]["0"]["5"]["keys"][well] == [all_]
    found = dominance["dominance"]["0"]["5"][well]
    assert (found["token"], found["dominant"]) == (well, all_)
    assert found["share"] == pytest.approx(0.72, abs=0.01)
    assert found["own"] == pytest.approx(0.01, abs=0.005)
    assert dominance["wins"][all_] >= 1


async def test_it_looks_at_the_dog(client: httpx.AsyncClient) -> None:
    """L5H11 gives 'it' -> 'dog' .599."""
    it, dog = 7, 2  # [CLS] a dog ate the food because it was hungry [SEP]

    told = await attention(client, DOG, form="top", k=1, specials="drop", heads={"5": [11]})

    at = told["axis"].index(it)
    assert told["edges"]["5"]["11"]["keys"][at] == [dog]
    assert told["edges"]["5"]["11"]["values"][at][0] == pytest.approx(0.599, abs=0.01)


def asking(text: str | dict[str, Any] = "a", **attention: Any) -> dict[str, Any]:
    """A request for the attention of two inputs."""
    return {"inputs": ["a b", text], "attention": attention}


def gated(*gates: tuple[Any, Any, Any]) -> dict[str, Any]:
    """A request with gates."""
    return {
        "inputs": [DOG],
        "gates": [dict(zip(("layer", "head", "scale"), gate, strict=True)) for gate in gates],
    }


OUT, ROWS = "index_out_of_range", ["attention", "rows"]
SEGMENTS: list[str | int] = ["attention", "segments"]
BAD: dict[str, tuple[dict[str, Any], str, list[str | int]]] = {
    "row of the longer text": (asking(form="rows", rows=[3]), OUT, ROWS),
    "negative row": (asking(form="rows", rows=[-1]), OUT, ROWS),
    "row of a special token dropped": (asking(form="rows", rows=[0], specials="drop"), OUT, ROWS),
    "row by a word": (asking(form="rows", rows=["a"]), "invalid_type", [*ROWS, 0]),
    "row as a fraction": (asking(form="rows", rows=[0.5]), "invalid_type", [*ROWS, 0]),
    "absent head by name": (asking(heads="L5H12"), OUT, ["attention"]),
    "head twice by name": (asking(heads=["L5H1", "L5H1"]), OUT, ["attention"]),
    "name and other layers": (asking(heads="L5H1", layers=[4]), OUT, ["attention"]),
    "no name of a head": (asking(heads="H5L1"), "out_of_range", ["attention", "heads"]),
    "names and numbers": (asking(heads=["L5H1", 2]), "out_of_range", ["attention", "heads"]),
    "mean of statistics": (asking(form="stats", heads="mean"), "out_of_range", ["attention"]),
    "mean of heads by name": (asking(heads=["mean"]), "out_of_range", ["attention", "heads"]),
    "segments of another form": (
        asking(segments=[[1, 2]]),
        "out_of_range",
        ["attention"],
    ),
    "no segments": (asking(form="mean", segments=[]), OUT, SEGMENTS),
    "segments of no pair": (asking(form="mean"), OUT, SEGMENTS),
    "an empty segment": (asking(form="mean", segments=[[2, 2]]), OUT, SEGMENTS),
    "segments that overlap": (asking(form="mean", segments=[[2, 4], [1, 3]]), OUT, SEGMENTS),
    "a segment with one end": (asking(form="mean", segments=[[2]]), OUT, SEGMENTS),
    "segment of the longer text": (
        asking(form="mean", segments=[[1, 2], [2, 10**9]]),
        OUT,
        [*SEGMENTS, 1],
    ),
    "segment of a special token dropped": (
        asking(form="mean", segments=[[0, 2]], specials="drop"),
        OUT,
        [*SEGMENTS, 0],
    ),
    "nothing left of a text": (
        {"inputs": [{"text": "a", "pair": " "}], "attention": {"form": "mean"}},
        "nothing_left",
        ["inputs", 0],
    ),
    "rows of another form": (asking(form="top", rows=[1]), "out_of_range", ["attention"]),
    "no rows to explain": (asking(form="why", heads="L0H2"), "out_of_range", ["attention"]),
    "row to explain of the longer text": (asking(form="why", rows=[3]), OUT, ROWS),
    "words to explain": (asking(form="why", rows=[1], level="word"), "out_of_range", ["attention"]),
    "value norm of maps": (asking(weight="value_norm"), "out_of_range", ["attention"]),
    "keys of another form": (asking(form="stats", k=4), "out_of_range", ["attention"]),
    "blocks of another form": (asking(size=4), "out_of_range", ["attention"]),
    "no blocks": (asking(form="blocks", size=0), "out_of_range", ["attention", "size"]),
    "no layers": (asking(layers=[]), OUT, ["attention"]),
    "no heads": (asking(heads={}), OUT, ["attention"]),
    "layer of 5,000 digits": (asking(heads={"1" * 5000: [1]}), OUT, ["attention"]),
    "words of embeddings": (
        asking({"embeddings": [[0.5] * 384]}, level="word"),
        "words_unknown",
        ["inputs", 1],
    ),
    "specials of embeddings": (
        asking({"embeddings": [[0.5] * 384]}, specials="drop"),
        "specials_unknown",
        ["inputs", 1],
    ),
    "nothing left": (asking(" ", specials="renormalize"), "nothing_left", ["inputs", 1]),
    "gate of layer 6": (gated((6, 0, 0.0)), OUT, ["gates"]),
    "gate of layer -1": (gated((-1, 0, 0.0)), OUT, ["gates"]),
    "gate twice": (gated((5, 11, 0.0), (5, 11, 1.0)), OUT, ["gates"]),
    "gate of NaN": (gated((5, 11, float("nan"))), "out_of_range", ["gates", 0, "scale"]),
}


@pytest.mark.parametrize(("asked", "code", "loc"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("path", ["/v1/encode", "/v1/encode?dry_run=true"])
async def test_what_cannot_be_shown_is_refused_with_its_place(
    client: httpx.AsyncClient, path: str, asked: Any, code: str, loc: list[str | int]
) -> None:
    """Before anything is computed, and by a dry run alike."""
    answer = await client.post(path, content=json.dumps(asked))

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, code)
    assert problem["errors"] == [{"loc": loc, "code": code}]


@pytest.mark.parametrize("field", ["inputs", "layers", "gates"])
async def test_a_list_of_errors_is_left_at_the_first(client: httpx.AsyncClient, field: str) -> None:
    """A million of them would keep the service from everyone else for seconds."""
    answer = await client.post("/v1/encode", json={"inputs": ["a"], field: [None] * 1000})

    assert (answer.status_code, len(answer.json()["errors"])) == (422, 1)


async def test_a_gate_of_one_changes_no_bit(client: httpx.AsyncClient) -> None:
    """On every head at once."""
    every = gated(*((layer, head, 1.0) for layer in range(6) for head in range(12)))
    more = {"tokens": True, "encoding": "base64", "attention": CHOSEN}

    plain = await encode(client, {"inputs": [DOG], **more})

    assert (await encode(client, {**every, **more}))["data"] == plain["data"]


@pytest.fixture(scope="module")
def theirs() -> BertModel:
    """transformers' model with the bundled weights."""
    model: BertModel = BertModel.from_pretrained(
        locate_model(BUNDLED_MODEL).folder, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


@pytest.mark.parametrize(
    "gates", [[(5, 11, 0.0)], [(0, 5, 0.0), (2, 3, -2.0), (2, 4, 0.5)]], ids=["one", "several"]
)
async def test_a_gate_scales_what_its_head_writes_through_w_o(
    client: httpx.AsyncClient, theirs: BertModel, gates: list[Gate]
) -> None:
    """As transformers computes it with those columns of W_O scaled; maps above it move along."""
    scaled = copy.deepcopy(theirs)
    for layer, head, scale in gates:
        output = scaled.encoder.layer[layer].attention.output.dense
        output.weight.data[:, head * HEAD : (head + 1) * HEAD] *= scale

    answer = await encode(client, {**gated(*gates), "tokens": True, "attention": {"layers": [5]}})

    item = answer["data"][0]
    with torch.inference_mode():
        wanted = scaled(torch.tensor([item["token_ids"]]), output_attentions=True)
    vectors = np.array(item["token_vectors"])
    np.testing.assert_allclose(vectors, wanted.last_hidden_state[0], rtol=0, atol=CLOSE)
    for head, found in item["attention"]["maps"]["5"].items():
        wanted_map = wanted.attentions[5][0, int(head)]
        np.testing.assert_allclose(np.array(found), wanted_map, rtol=0, atol=CLOSE)


async def test_a_gate_leaves_others_in_its_batch_as_they_are(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, for the gated and the ungated alike."""
    more = {"tokens": True, "encoding": "base64", "attention": {"layers": [5]}}
    asked = [{**gated((0, 5, 0.0), (3, 1, 7.0)), **more}, {"inputs": [DOG], **more}]
    alone = [(await encode(client, one))["data"] for one in asked]
    run, go, batches = replica.lanes.run_batch, threading.Event(), list[set[bool]]()

    def held(works: Sequence[Work], threads: int) -> list[Result | Exception]:
        go.wait(20)
        batches.append({bool(work.sequence.gates) for work in works})
        return run(works, threads)

    monkeypatch.setattr(replica.lanes, "run_batch", held)
    first = [{"inputs": ["a"]}] * 2  # they keep the lanes while the others gather
    tasks = [asyncio.create_task(encode(client, one)) for one in first + asked * 3]
    try:
        async with asyncio.timeout(60):
            while replica.batcher.waiting_requests < len(asked * 3):
                await asyncio.sleep(0.01)
    finally:
        go.set()
    together = [answer["data"] for answer in (await asyncio.gather(*tasks))[len(first) :]]

    assert together == alone * 3
    assert {True, False} in batches


@pytest.mark.parametrize(
    ("attend", "path"),
    [
        (kernels.attend_plain, "exact"),
        pytest.param(kernels.attend_fused, "fused", marks=pytest.mark.prove),
    ],
)
async def test_an_answer_names_the_path_that_computed_it(
    outer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attend: Any, path: str
) -> None:
    """In each form, as JSON and in a file: not every machine has a fused kernel."""
    if kernels.ONEDNN is not None:  # a torch without it computes the exact way anyhow
        monkeypatch.setattr(kernels, "ONEDNN", replace(kernels.ONEDNN, attend=attend))
    checkpoint(tmp_path, "Model")
    settings = Settings(model=str(tmp_path), threads=1, device="cpu", dtype="float32")
    forms = [{"form": "full"}, {"form": "rollout"}, {"form": "stats"}, {"form": "dominance"}]
    named = []
    replica = await Replica.start(settings, "path-1")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(outer(replica)), base_url="http://headlight"
    ) as client:
        for form in forms:
            asked = {"inputs": ["All is well"], "attention": form}
            answer = await client.post("/v1/encode", json=asked)
            named.append(answer.json()["data"][0]["attention"]["path"])
        answer = await client.post("/v1/encode", json=asked, headers={"accept": SAFETENSORS})
    await replica.close()

    length = int.from_bytes(answer.content[:8], "little")
    told = json.loads(json.loads(answer.content[8:][:length])["__metadata__"]["headlight"])
    assert [*named, told["data"][0]["attention"]["path"]] == [path] * 5
