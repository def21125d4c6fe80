"""Safetensors answers -> typed arrays."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest

import headlight_client
from headlight_client import ModelChanged, NoAnswer, answers, errors
from headlight_client.answers import Attention, Encoded, Item
from headlight_client.reading import read_answer

ACCEPT = {"Accept": "application/vnd.safetensors"}
SHOWN = {"layers": [5, 0], "heads": [11, 3, 10]}


async def both(client: httpx.AsyncClient, **asked: Any) -> tuple[Attention, dict[str, Any]]:
    """The attention of a text as we read it, and as the service's JSON has it."""
    body = {"inputs": ["All is well"], "attention": {**SHOWN, **asked}}
    binary = await client.post("/v1/encode", json=body, headers=ACCEPT)
    told = (await client.post("/v1/encode", json=body)).json()
    shown = read_answer(Encoded, binary.content).items[0].attention
    assert shown is not None
    return shown, told["data"][0]["attention"]


async def read(client: httpx.AsyncClient, **asked: Any) -> Item:
    """The answer to a text, as we read it."""
    body = {"inputs": ["All is well"], **asked}
    answer = await client.post("/v1/encode", json=body, headers=ACCEPT)
    assert answer.status_code == 200, answer.text
    return read_answer(Encoded, answer.content).items[0]


@pytest.mark.parametrize(
    "asked",
    [{}, {"form": "rows", "rows": [3, 1]}, {"form": "blocks", "size": 2}],
    ids=["full", "rows", "blocks"],
)
async def test_maps_are_by_layer_and_head(client: httpx.AsyncClient, asked: Any) -> None:
    """In the model's order, with the numbers of the JSON."""
    shown, told = await both(client, **asked)

    assert list(shown.maps) == [(0, 3), (0, 10), (0, 11), (5, 3), (5, 10), (5, 11)]
    for (layer, head), array in shown.maps.items():
        expected = np.array(told["maps"][str(layer)][str(head)], np.float32)
        np.testing.assert_array_equal(array, expected, strict=True)
    assert (shown.form, shown.path) == (told["form"], told["path"])
    assert shown.facts == {
        name: told[name] for name in told if name not in ("form", "path", "maps")
    }


async def test_edges_are_three_arrays_by_head(client: httpx.AsyncClient) -> None:
    """Keys, values and what is left."""
    shown, told = await both(client, form="top", k=2)

    assert list(shown.edges)[-1] == (5, 11) and not shown.maps
    for (layer, head), edges in shown.edges.items():
        for name, array in edges._asdict().items():
            np.testing.assert_array_equal(
                array, np.array(told["edges"][str(layer)][str(head)][name], array.dtype)
            )


async def test_means_are_by_layer_and_over_all(client: httpx.AsyncClient) -> None:
    """Of heads, of segments, and the strongest keys."""
    asked = {"form": "mean", "segments": [[1, 2], [2, 4]], "heads": "mean", "layers": [0, 5]}
    shown, told = await both(client, **asked)

    assert [*shown.maps] == [(0, "mean"), (5, "mean")]
    for (layer, _), array in shown.maps.items():
        expected = np.array(told["maps"][str(layer)]["mean"], np.float32)
        np.testing.assert_array_equal(array, expected, strict=True)
    assert shown.mean is not None and shown.facts["segments"] == [[1, 2], [2, 4]]
    np.testing.assert_array_equal(shown.mean, np.array(told["map"], np.float32), strict=True)

    edges, _ = await both(client, form="top", heads="mean", layers=[5])
    assert [*edges.edges] == [(5, "mean")] and not edges.maps


async def test_statistics_are_by_head_and_name(client: httpx.AsyncClient) -> None:
    """In whichever order the heads were requested."""
    shown, told = await both(client, form="stats")

    assert list(shown.stats) == [(0, 3), (0, 10), (0, 11), (5, 3), (5, 10), (5, 11)]
    for (layer, head), values in shown.stats.items():
        numbers = told["stats"]["values"][str(layer)][str(head)]
        assert list(values) == told["stats"]["fields"]
        np.testing.assert_array_equal([*values.values()], np.float32(numbers))


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"form": "rows", "rows": [3, 1]},
        {"form": "top", "k": 2},
        {"form": "stats"},
        {"form": "dominance"},
    ],
    ids=["full", "rows", "top", "stats", "dominance"],
)
async def test_a_permuted_selection_names_the_same_arrays(
    client: httpx.AsyncClient, form: dict[str, Any]
) -> None:
    """Heads by their keys, and rows by those of the request."""
    asked = {"heads": ["L5H11", "L5H0", "L0H5"], **form}
    turned = {**asked, "heads": ["L0H5", "L5H0", "L5H11"], "rows": form.get("rows", [])[::-1]}

    first = await read(client, attention=asked)
    second = await read(client, attention=turned)

    assert first.attention is not None and second.attention is not None
    for name in ("maps", "edges", "stats", "dominance"):
        one, other = getattr(first.attention, name), getattr(second.attention, name)
        assert list(one) == list(other)
        for head in one:
            rows = other[head][::-1] if "rows" in form else other[head]
            np.testing.assert_equal(one[head], rows)


async def test_permuted_layers_and_a_permuted_sweep_name_the_same_arrays(
    client: httpx.AsyncClient,
) -> None:
    """Layers by number, and a sweep's cosines by head."""
    heads = ["L5H11", "L0H5"]

    first = await read(client, layers=[6, 0], sweep={"heads": heads})
    second = await read(client, layers=[0, -1], sweep={"heads": heads[::-1]})

    np.testing.assert_equal(first.layers, second.layers)
    assert first.cosine == second.cosine


async def test_dominance_is_four_columns_by_head_and_the_wins(client: httpx.AsyncClient) -> None:
    """Token by token."""
    shown, told = await both(client, form="dominance")

    records = told["dominance"]["5"]["11"]
    columns = shown.dominance[5, 11]
    assert list(columns.tokens) == [record["token"] for record in records]
    assert list(columns.dominant) == [record["dominant"] for record in records]
    np.testing.assert_array_equal(
        columns.share, np.array([record["share"] for record in records], np.float32)
    )
    assert shown.wins is not None and list(shown.wins) == told["wins"]


async def test_rollout_is_one_map(client: httpx.AsyncClient) -> None:
    """(query, key)."""
    shown, told = await both(client, form="rollout", layers="all", heads="all")

    assert shown.rollout is not None
    np.testing.assert_array_equal(shown.rollout, np.array(told["map"], np.float32))


@pytest.mark.parametrize("cut", [0, 4, 100, -1], ids=["all", "length", "header", "last byte"])
async def test_a_cut_off_answer_is_none(client: httpx.AsyncClient, cut: int) -> None:
    """Whatever is missing."""
    whole = await client.post("/v1/encode", json={"inputs": ["a"]}, headers=ACCEPT)

    with pytest.raises(NoAnswer):
        read_answer(Encoded, whole.content[:cut])


async def test_answers_of_two_models_are_not_joined(client: httpx.AsyncClient) -> None:
    """Vectors of different weights mean different things."""
    whole = await client.post("/v1/encode", json={"inputs": ["a"]}, headers=ACCEPT)
    one = read_answer(Encoded, whole.content)
    other = replace(one, model="m")

    with pytest.raises(ModelChanged, match="model changed from all-MiniLM-L6-v2 to m"):
        Encoded.join([one, other])


@pytest.mark.parametrize(("module", "inner"), [(answers, {"Answer"}), (errors, set())])
async def test_the_classes_of_answers_and_errors_are_imported_from_the_package(
    module: ModuleType, inner: set[str]
) -> None:
    """All but Answer, which answers have in common."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type)]

    own = {kind.__name__ for kind in kinds if kind.__module__ == module.__name__}

    assert own - {*headlight_client.__all__} == inner


async def test_spans_come_with_their_vectors(client: httpx.AsyncClient) -> None:
    """As the service's JSON has them; an input without any has none."""
    item = {"text": "All is well", "spans": [[0, 3], [2, 11]]}
    body = {"inputs": [item, "Yes"]}
    binary = await client.post("/v1/encode", json=body, headers=ACCEPT)
    told = (await client.post("/v1/encode", json=body)).json()["data"][0]["spans"]

    spanned, plain = read_answer(Encoded, binary.content).items

    for span, shown in zip(spanned.spans, told, strict=True):
        assert [*span.characters, *span.tokens] == [*shown["characters"], *shown["tokens"]]
        assert list(span.extent) == shown["extent"]
        np.testing.assert_array_equal(span.pooled, np.float32(shown["pooled"]))
    assert plain.spans == []
