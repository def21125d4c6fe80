"""Attention of the form why, through POST /v1/encode: what scores are made of."""

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from headlight_client.answers import Encoded
from headlight_client.reading import read_answer
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.probes.carried import Sources
from model.probes.why import explain_scores
from service.pipeline.replica import Replica
from service.questions.carried import CARRYING_TAKES
from service.questions.encode.question import NOT_WITH_WHY
from tests.conftest import posted
from tests.service.api.exact_arrays import array

DOG = "A dog ate the food because it was hungry"
INPUTS: list[Any] = [
    "All is well",
    {"text": DOG, "pair": "It was"},
    {"token_ids": [101, 2035, 2003, 2092, 102]},
    {"embeddings": [[0.01 * (i % 7 - j % 5) for i in range(384)] for j in range(4)]},
]
LONG = [101, *range(2000, 2032), 102]  # tokens of two tiles
HEADS = ["L0H2", "L0H9", "L2H3", "L2H11"]
WHY = {"form": "why", "heads": HEADS, "rows": [3, 1]}
FILE = {"accept": "application/vnd.safetensors"}
CLOSE = 1e-4  # of logits of some units


async def encode(client: httpx.AsyncClient, *inputs: Any, **more: Any) -> list[dict[str, Any]]:
    """The items of POST /v1/encode."""
    body = {"inputs": inputs, "pooled": False, **more}
    return (await posted(client, "/v1/encode", body))["data"]


def rows_of(head: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The parts of all rows of a head, (rows, .., keys) in float64."""
    return np.array([row["scores"] for row in head["rows"]], np.float64)


async def test_parts_sum_to_the_logits_of_the_rows_that_are_served(
    client: httpx.AsyncClient,
) -> None:
    """Less their mean, as the logarithms of probabilities are; and the shares sum to 1."""
    asked = {"form": "rows", "rows": WHY["rows"], "heads": HEADS}
    told = await encode(client, *INPUTS, attention=WHY)
    served = await encode(client, *INPUTS, attention=asked)

    for one, other in zip(told, served, strict=True):
        count = len(one["token_ids"] or range(4))
        for layer, heads in one["attention"]["why"].items():
            for number, head in heads.items():
                logs = np.log(np.array(other["attention"]["maps"][layer][number]))
                parts = rows_of(head).reshape(2, -1, count)
                np.testing.assert_allclose(
                    parts.sum(1), logs - logs.mean(1, keepdims=True), rtol=0, atol=CLOSE
                )
                np.testing.assert_allclose(parts.sum(2), 0, atol=CLOSE)
                assert np.sum(head["share"]) == pytest.approx(1, abs=1e-5)
                assert [row["row"] for row in head["rows"]] == WHY["rows"]
                tokens = one["tokens"] or [None] * count
                names = ["word", "position", "rest"] if layer == "0" else [*tokens, "bias"]
                assert head["parts"] == names


async def test_json_base64_safetensors_and_the_client_have_the_same_numbers(
    client: httpx.AsyncClient,
) -> None:
    """Of several tiles too; as many bytes as a dry run says, and the same alone as among others."""
    long = {"token_ids": LONG}
    body = {"inputs": [long, DOG], "pooled": False, "attention": WHY}
    plain, exact = [
        await encode(client, long, DOG, attention=WHY, encoding=how) for how in ("json", "base64")
    ]
    alone = await encode(client, DOG, attention=WHY, encoding="base64")
    dry = (await client.post("/v1/encode?dry_run=true", json=body)).json()
    binary = await client.post("/v1/encode", json=body, headers=FILE)
    read = read_answer(Encoded, binary.content).items

    assert alone[0]["attention"] == exact[1]["attention"]
    assert dry["attention_bytes"] == sum(each.nbytes for each in load(binary.content).values())
    for index, item in enumerate(read):
        assert item.attention is not None and [*item.attention.why] == [
            (0, 2),
            (0, 9),
            (2, 3),
            (2, 11),
        ]
        for (layer, head), why in item.attention.why.items():
            told, bits = [
                every[index]["attention"]["why"][str(layer)][str(head)] for every in (plain, exact)
            ]
            np.testing.assert_array_equal(why.share, array(bits["share"]), strict=True)
            np.testing.assert_array_equal(why.share, np.array(told["share"], np.float32))
            np.testing.assert_array_equal(why.shuffled, array(bits["shuffled"]), strict=True)
            assert np.sum(told["shuffled"]) == pytest.approx(1, abs=1e-5)
            assert np.shape(told["shuffled"]) == np.shape(told["share"]) != ()
            assert (
                float(why.deviation) == pytest.approx(told["deviation"]) and told["deviation"] > 0
            )
            rows = [array(row["scores"]) for row in bits["rows"]]
            np.testing.assert_array_equal(why.scores, np.stack(rows), strict=True)
            np.testing.assert_array_equal(why.scores, rows_of(told).astype(np.float32))
            assert (why.parts, why.rows) == (told["parts"], WHY["rows"])


async def test_each_part_above_layer_0_is_of_the_token_that_it_names(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Of several tiles, as all sources carried at once have it; the biases' is the last."""
    shown = Selection({2: (3,)}, divide_into_units(34), "why", rows=(7,))
    every = Sources(range(1, 35), range(35))
    with torch.inference_mode():
        made = explain_scores(replica.lanes.model.encoder, Sequence(LONG), shown, every)[2]

    asked = {"form": "why", "heads": "L2H3", "rows": [7]}
    (told,) = await encode(client, {"token_ids": LONG}, attention=asked)

    head = told["attention"]["why"]["2"]["3"]
    scores, share = made["scores"][0, 0].roll(-1, 0), made["share"][0].roll(-1, 0)
    shuffled = made["shuffled"][0].roll(-1, 0)
    np.testing.assert_allclose(head["rows"][0]["scores"], scores, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(head["share"], share, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(head["shuffled"], shuffled, rtol=0, atol=CLOSE)


async def test_a_gate_is_in_the_scores_of_layers_above_it(client: httpx.AsyncClient) -> None:
    """And in none of its own layer."""
    asked = {"heads": ["L0H2", "L1H3"], "form": "why", "rows": [3]}
    gates = [{"layer": 0, "head": 2, "scale": 0.0}]

    (plain,) = await encode(client, DOG, attention=asked)
    (gated,) = await encode(client, DOG, attention=asked, gates=gates)

    one, other = plain["attention"]["why"], gated["attention"]["why"]
    assert one["0"] == other["0"]
    assert np.abs(rows_of(one["1"]["3"]) - rows_of(other["1"]["3"])).max() > 0.1


async def test_its_price_is_known_before(
    client: httpx.AsyncClient, served: Callable[..., Any]
) -> None:
    """Above layer 0 each token carried counts as the work of the text; too much is refused."""

    async def ask(http: httpx.AsyncClient, path: str = "/v1/encode", **more: Any) -> dict[str, Any]:
        body = {"inputs": [DOG], "pooled": False, "attention": {**WHY, **more}}
        told: dict[str, Any] = (await http.post(path, json=body)).json()
        return told

    dry = [
        (await ask(client, "/v1/encode?dry_run=true", heads=heads))["flops"]
        for heads in (["L0H2"], ["L1H2"], ["L5H2"])
    ]
    async with served(max_request_tokens=100) as few:
        lowest, above = await ask(few, heads=["L0H2"]), await ask(few)
    async with served(max_answer_bytes=8 * 2000) as small:
        large = await ask(small)
    async with served(max_held_bytes=1 << 20) as small:
        full = await ask(small)

    assert 2 * dry[0] < dry[1] and 3 * dry[1] < dry[2]
    assert lowest["data"] and above["code"] == "too_many_tokens"
    assert CARRYING_TAKES[1:] in above["detail"]
    assert large["code"] == "attention_too_large" and large["bytes"] > large["limit"]
    assert full["code"] == "overloaded"


@pytest.mark.parametrize("more", ["sweep", "patch"])
async def test_a_pass_that_takes_values_from_another_is_not_explained(
    client: httpx.AsyncClient, more: str
) -> None:
    """It is not linear in its own input alone."""
    body: dict[str, Any] = {"inputs": [DOG, DOG], "attention": WHY}
    if more == "sweep":
        body["sweep"] = "heads"
    else:
        body["inputs"][1] = {"text": DOG, "patch": [{"layer": 1, "head": 1, "from": 0}]}
    answer = await client.post("/v1/encode", json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "out_of_range")
    assert NOT_WITH_WHY in answer.json()["detail"]
