"""What a head is worth, over HTTP: gates and patches of one input, and sweeps."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from safetensors.numpy import load

from model.packing import Sequence
from service.pipeline.cost import make_cost_counter
from service.pipeline.replica import Replica
from service.shapes.work import Outputs, Work
from service.tables.settings import JSON_FACTOR, Settings
from tests.conftest import application, connected, posted
from tests.replica_internals import believe
from tests.task_heads import checkpoint

DOG, CAT, ALL = "A dog ate the food because it was hungry", "Unbelievable headlights", "All is well"
LAYERS, HEADS = 6, 12
Array = NDArray[Any]
Heads = dict[str, dict[str, Any]]


def gate(layer: int, head: int, scale: float = 0.0) -> dict[str, Any]:
    """A gate of the wire."""
    return {"layer": layer, "head": head, "scale": scale}


async def ask(client: httpx.AsyncClient, *inputs: Any, **fields: Any) -> list[dict[str, Any]]:
    """What POST /v1/encode answers to each input."""
    return (await posted(client, "/v1/encode", {"inputs": inputs, **fields}))["data"]


async def vector(client: httpx.AsyncClient, given: Any, **fields: Any) -> Array:
    """The pooled vector of one input alone, exactly."""
    (one,) = await ask(client, given, encoding="base64", **fields)
    return np.frombuffer(base64.b64decode(one["pooled"]["data"]), "<f4")


async def compare(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """What POST /v1/similarity answers."""
    return await posted(client, "/v1/similarity", body)


async def refused(client: httpx.AsyncClient, path: str, **body: Any) -> tuple[str, list[Any], str]:
    """The code of a refusal, its first place, and its words."""
    told = (await client.post(path, json=body)).json()
    return told["code"], told["errors"][0]["loc"], told["detail"]


def cosine(u: Array, v: Array) -> float:
    """Of two vectors, float64."""
    u, v = u.astype(np.float64), v.astype(np.float64)
    return float((u * v).sum() / (np.sqrt((u * u).sum()) * np.sqrt((v * v).sum())))


def flat(by_head: Heads) -> dict[tuple[int, int], Any]:
    """A sweep by layer and head as numbers."""
    return {(int(i), int(j)): c for i, heads in by_head.items() for j, c in heads.items()}


@pytest_asyncio.fixture(scope="module")
async def classifying(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a small classifier of three classes, of 2 layers with 3 heads."""
    folder = tmp_path_factory.mktemp("classifier")
    checkpoint(folder, "ForSequenceClassification", num_labels=3)
    settings = Settings(model=str(folder), device="cpu", threads=1)
    replica = await Replica.start(settings, "classifying-1")
    async with connected(application(replica)) as client:
        yield client
    await replica.close()


async def test_gates_of_an_input_are_its_own_and_go_before_the_requests(
    client: httpx.AsyncClient,
) -> None:
    """Inputs with different gates share a batch, each with the bits of a request of its own."""
    common, own = [gate(0, 1, 0.5), gate(5, 11)], [gate(5, 11, 2.0), gate(3, 7)]
    inputs = [DOG, {"text": DOG, "gates": own}, {"text": DOG, "gates": []}, {"text": DOG}]

    together = await ask(client, *inputs, gates=common, encoding="base64")

    alone = await vector(client, DOG, gates=common)
    both = await vector(client, DOG, gates=[common[0], *own])
    found = [np.frombuffer(base64.b64decode(one["pooled"]["data"]), "<f4") for one in together]
    for one, expected in zip(found, (alone, both, alone, alone), strict=True):
        np.testing.assert_array_equal(one, expected)
    assert not np.array_equal(alone, both)


@pytest.mark.parametrize(
    "given",
    [
        DOG,
        {"text": ALL, "pair": CAT},
        {"token_ids": [101, 2035, 102], "gates": [gate(2, 3)]},
        {"embeddings": np.sin(np.arange(5 * 384)).reshape(5, 384).tolist()},
    ],
    ids=["text", "pair", "ids with a gate", "embeddings"],
)
async def test_a_sweep_says_what_single_requests_with_gates_say(
    client: httpx.AsyncClient, given: Any
) -> None:
    """To the bit: the cosine of the very vectors that such requests have, some of each layer."""
    (swept,) = await ask(client, given, sweep="heads")

    item = {"text": given} if isinstance(given, str) else given
    whole = await vector(client, given)
    found = flat(swept["sweep"]["cosine"])
    assert [*found] == [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    for layer in range(LAYERS):
        for head in {layer, layer + 1, HEADS - 1}:
            gates = [*item.get("gates", []), gate(layer, head)]
            gates = gates[-1:] if (layer, head) == (2, 3) else gates
            alone = await vector(client, item | {"gates": gates})
            assert found[layer, head] == cosine(alone, whole), (layer, head)


async def test_a_sweep_of_some_heads_holds_those_alone(client: httpx.AsyncClient) -> None:
    """Heads and layers as attention names them, another scale, with all other outputs."""
    body = {"tokens": True, "layers": [2], "attention": {"layers": [1], "form": "stats"}}
    plain, swept = [
        await ask(client, DOG, CAT, **body, **more, encoding="base64")
        for more in ({}, {"sweep": {"heads": ["L5H11", "L0H2", "L5H1"], "scale": -1.5}})
    ]

    for given, one, other in zip((DOG, CAT), plain, swept, strict=True):
        sweep = other.pop("sweep")
        assert one == other
        assert {layer: list(heads) for layer, heads in sweep["cosine"].items()} == {
            "0": ["2"],
            "5": ["1", "11"],
        }
        whole = await vector(client, given)
        for (layer, head), found in flat(sweep["cosine"]).items():
            alone = await vector(client, given, gates=[gate(layer, head, -1.5)])
            assert found == cosine(alone, whole)


async def test_a_sweep_goes_beside_the_requests_own_gates(client: httpx.AsyncClient) -> None:
    """What else each head is worth once some are dropped; a dropped head changes nothing more."""
    gates = [gate(0, 1), gate(3, 2, 0.5)]

    (told,) = await ask(client, DOG, gates=gates, sweep={"heads": {"0": [1], "1": [4], "3": [2]}})

    whole = await vector(client, DOG, gates=gates)
    more = await vector(client, DOG, gates=[*gates, gate(1, 4)])
    without = await vector(client, DOG, gates=[gate(0, 1), gate(3, 2)])
    found = flat(told["sweep"]["cosine"])
    assert found[1, 4] == cosine(more, whole)
    assert found[3, 2] == cosine(without, whole)
    assert found[0, 1] == pytest.approx(1.0, abs=1e-15)


async def test_a_sweep_of_a_similarity_is_the_change_of_its_score(
    client: httpx.AsyncClient,
) -> None:
    """With the head scaled in both texts; nothing else of the answer moves."""
    heads = {"0": [5], "5": [11, 3]}
    body = {"left": DOG, "right": [CAT, {"text": ALL, "gates": [gate(1, 1)]}]}
    plain = await compare(client, **body)

    told = await compare(client, **body, sweep={"heads": heads})

    assert "sweep" not in told["left"]
    changes = [flat(one.pop("sweep")["change"]) for one in told["right"]]
    assert [one["matrix"] for one in told["right"]] == [one["matrix"] for one in plain["right"]]
    assert [one["score"] for one in told["right"]] == [one["score"] for one in plain["right"]]
    own = [[], [gate(1, 1)]]
    for text, gates, change, one in zip((CAT, ALL), own, changes, told["right"], strict=True):
        assert list(change) == [(0, 5), (5, 3), (5, 11)]
        for (layer, head), found in change.items():
            left = await vector(client, DOG, gates=[gate(layer, head)])
            right = await vector(client, text, gates=[*gates, gate(layer, head)])
            assert found == pytest.approx(cosine(left, right) - one["score"], abs=1e-14)


@pytest.mark.parametrize(
    "look", [{}, {"level": "word", "specials": "drop"}, {"form": "top", "gates": [gate(1, 2)]}]
)
async def test_a_sweep_of_a_pair_is_the_change_of_its_share(
    client: httpx.AsyncClient, look: dict[str, Any]
) -> None:
    """As single requests with gates have it in their matrices; of each text on the right."""
    body = {"left": DOG, "right": [CAT, ALL], **look}
    row, column = 1, 1
    heads = {"heads": ["L0H5", "L5H11"]}

    told = await compare(client, **body, sweep=heads, sweep_pair=[row, column])

    own = look.get("gates", [])
    whole = await compare(client, **body | {"form": "full"})
    for layer, head in ((0, 5), (5, 11)):
        gates = [*own, gate(layer, head)]
        without = await compare(client, **body | {"form": "full", "gates": gates})
        for one, before, after in zip(told["right"], whole["right"], without["right"], strict=True):
            share = flat(one["sweep"]["share"])[layer, head]
            expected = after["matrix"][row][column] - before["matrix"][row][column]
            assert share == pytest.approx(expected, abs=1e-7) and abs(share) > 1e-6


@pytest.mark.parametrize(("pair", "side"), [([1, 99], 1), ([11, 0], 0)])
async def test_a_pair_that_the_matrix_does_not_have_is_refused(
    client: httpx.AsyncClient, pair: list[int], side: int
) -> None:
    """Before any work, with the rows or columns that there are."""
    body = {"left": DOG, "right": [ALL], "sweep": "heads", "sweep_pair": pair}
    code, loc, detail = await refused(client, "/v1/similarity", **body)

    assert (code, loc[-2:]) == ("index_out_of_range", ["sweep_pair", side])
    assert detail.startswith(f"sweep_pair[{side}]: expected a {('row', 'column')[side]} from 0 to ")


@pytest.mark.parametrize("more", [{}, {"sweep": "heads", "form": "score"}])
async def test_a_pair_needs_a_sweep_and_a_matrix(
    client: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    """It is refused rather than left out."""
    body = {"left": DOG, "right": [ALL], "sweep_pair": [0, 0], **more}
    answer = await client.post("/v1/similarity", json=body)

    assert answer.status_code == 422 and "sweep_pair" in answer.text


@pytest.mark.parametrize("form", ["top", "score"])
async def test_every_form_of_a_similarity_has_its_sweep(
    client: httpx.AsyncClient, form: str
) -> None:
    """The same numbers."""
    whole, other = [
        await compare(client, left=DOG, right=[CAT], form=each, sweep={"heads": "L2H7"})
        for each in ("full", form)
    ]

    assert whole["right"][0]["sweep"] == other["right"][0]["sweep"]


async def test_a_sweep_says_how_logits_move(classifying: httpx.AsyncClient) -> None:
    """Of each class, whether a vector is asked for or not; of a text and of a pair."""
    pair = {"text": ALL, "pair": CAT}
    (plain,) = await ask(classifying, pair, classify=True, pooled=False)

    (told,) = await ask(classifying, pair, classify=True, pooled=False, sweep="heads")

    assert list(told["sweep"]) == ["logits"] and told["classes"] == plain["classes"]
    moved = flat(told["sweep"]["logits"])
    assert list(moved) == [(layer, head) for layer in range(2) for head in range(3)]
    for (layer, head), found in moved.items():
        (gated,) = await ask(
            classifying, pair, classify=True, pooled=False, gates=[gate(layer, head)]
        )
        pairs = zip(gated["classes"], plain["classes"], strict=True)
        expected = [one["logit"] - other["logit"] for one, other in pairs]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert max(map(abs, sum(moved.values(), []))) > 1e-3
    (both,) = await ask(classifying, pair, classify=True, sweep={"heads": "L1H2"})
    assert list(both["sweep"]) == ["cosine", "logits"]


async def test_a_patch_takes_a_heads_output_from_another_input(client: httpx.AsyncClient) -> None:
    """All heads of a layer patched from a text: from there on it is that text, residual aside."""
    heads = [{"layer": 0, "head": head, "from": 1} for head in range(HEADS)]
    one, other = "A dog ate it", "A cat saw me"
    self_like = {"text": one, "patch": [{**patch, "from": 1} for patch in heads]}

    same, _, moved, source, plain = await ask(
        client,
        self_like,
        one,
        {"text": one, "patch": [{"layer": 3, "head": 7, "from": 3}]},
        other,
        one,
        pooled=True,
        encoding="base64",
    )

    assert same["pooled"] == plain["pooled"]
    assert moved["pooled"] != plain["pooled"]
    assert (
        source["pooled"]["data"]
        == base64.b64encode((await vector(client, other)).tobytes()).decode()
    )


async def test_a_patch_takes_what_the_sources_gates_leave(client: httpx.AsyncClient) -> None:
    """A head dropped in the source is a head dropped in the patched input; also by its name."""
    source = {"text": DOG, "gates": [{"head": "L2H5", "scale": 0}]}
    patched = {"text": DOG, "patch": [{"head": "L2H5", "from": 0}]}

    found = (await ask(client, source, patched, gates=[gate(2, 5, 3.0)], encoding="base64"))[1]

    expected = await vector(client, DOG, gates=[gate(2, 5)])
    np.testing.assert_array_equal(
        np.frombuffer(base64.b64decode(found["pooled"]["data"]), "<f4"), expected
    )


async def test_a_patched_input_is_swept_with_its_patch(client: httpx.AsyncClient) -> None:
    """Below the patch, in its layer and above."""
    source, patch = {"text": "A cat saw me"}, [{"layer": 3, "head": 7, "from": 0}]
    item = {"text": "A dog ate it", "patch": patch}
    heads = {"1": [0], "3": [6, 7], "5": [2]}

    told = (await ask(client, source, item, sweep={"heads": heads}))[1]

    def pooled(one: dict[str, Any]) -> Array:
        return np.frombuffer(base64.b64decode(one["pooled"]["data"]), "<f4")

    whole = pooled((await ask(client, source, item, encoding="base64"))[1])
    for (layer, head), found in flat(told["sweep"]["cosine"]).items():
        gates, of_source = [gate(layer, head)], source
        if (layer, head) == (3, 7):  # a head is not gated and patched: drop it in the source
            of_source, gates = {**source, "gates": gates}, []
        both = await ask(client, of_source, {**item, "gates": gates}, encoding="base64")
        assert found == cosine(pooled(both[1]), whole), (layer, head)


async def test_a_sweep_comes_in_a_safetensors_answer(client: httpx.AsyncClient) -> None:
    """As JSON in its metadata, the same numbers."""
    body = {"inputs": [DOG], "sweep": {"heads": "L2H7"}}
    told = (await client.post("/v1/encode", json=body)).json()["data"][0]["sweep"]

    kind = "application/vnd.safetensors"
    answer = await client.post("/v1/encode", json=body, headers={"accept": kind})

    assert list(load(answer.content)) == ["0.pooled"]
    header = answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")]
    metadata = json.loads(json.loads(header)["__metadata__"]["headlight"])
    assert metadata["data"][0]["sweep"] == told


async def test_a_dry_run_prices_every_copy_from_its_layer_on(client: httpx.AsyncClient) -> None:
    """About half of as many whole passes; what does not fit by its deadline is not admitted."""
    runs = [
        (await client.post("/v1/encode?dry_run=true", json={"inputs": [DOG], **more})).json()
        for more in ({}, {"sweep": "heads"}, {"sweep": {"layers": [5]}})
    ]

    whole, every, last = (run["flops"] for run in runs)
    assert 0.4 * 72 * whole < every < 0.6 * 72 * whole
    assert whole < last < every / 6
    assert runs[1]["answer_bytes"] - runs[0]["answer_bytes"] == 72 * 8
    assert [run["tokens"] for run in runs] == [runs[0]["tokens"]] * 3
    headers = {"x-headlight-deadline-ms": "5"}
    body = {"inputs": ["well " * 250], "sweep": "heads"}
    late = await client.post("/v1/encode?dry_run=true", json=body, headers=headers)
    assert (late.json()["admitted"], late.json()["code"]) == (False, "deadline_unreachable")
    none = await client.post("/v1/encode", json=body, headers=headers)
    assert none.status_code == 422 and none.json()["code"] == "deadline_unreachable"


@pytest.mark.parametrize("most, status", [(72 * 8 - 1, 413), (72 * 8, 200)])
async def test_a_sweeps_numbers_are_json_beside_base64_too(
    served: Callable[..., httpx.AsyncClient], most: int, status: int
) -> None:
    """And so count in what an answer may have of them."""
    body = {"inputs": [ALL], "sweep": "heads", "encoding": "base64"}

    answer = await served(max_answer_bytes=JSON_FACTOR * most).post("/v1/encode", json=body)

    assert answer.status_code == status, answer.text


async def test_a_sweep_that_is_given_up_leaves_the_queue(
    replica: Replica, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next copies are never run, and what it held is free."""
    batches, run = list[Any](), replica.lanes.run_batch

    def watched(*batch: Any) -> Any:
        batches.append(batch)
        return run(*batch)

    monkeypatch.setattr(replica.lanes, "run_batch", watched)
    body = {"inputs": ["well " * 240], "sweep": "heads"}
    asked = asyncio.create_task(client.post("/v1/encode", json=body))
    while not asked.done() and replica.batcher.waiting_tokens < 5000:
        await asyncio.sleep(0)
    before = len(batches)

    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await replica.batcher.drain()

    assert replica.batcher.waiting_tokens == 0
    assert len(batches) - before < 4


async def test_the_copies_of_admitted_sweeps_count_before_they_wait(
    replica: Replica, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one's text runs, another is admitted only if the copies of both can be done in time."""
    config, batcher, go = replica.lanes.model.config, replica.batcher, asyncio.Event()
    call = replica.lanes.call_in_lane

    async def held(*batch: Any) -> Any:
        await go.wait()
        return await call(*batch)

    text = Work(Sequence([0] * 5), Outputs())
    copies = [replace(text, entered=layer, edited_heads=1) for layer in range(LAYERS)]
    own, *every = make_cost_counter(config)([text, *copies])
    speed = (own + HEADS * sum(every)) / 10
    monkeypatch.setattr(replica.lanes, "call_in_lane", held)
    believe(monkeypatch, batcher, speed)
    body, headers = {"inputs": [ALL], "sweep": "heads"}, {"x-headlight-deadline-ms": "15000"}

    async def admitted() -> tuple[bool, str | None]:
        told = await client.post("/v1/encode?dry_run=true", json=body, headers=headers)
        return told.json()["admitted"], told.json()["code"]

    alone = await admitted()
    asked = asyncio.create_task(client.post("/v1/encode", json=body))
    while not batcher.busy:
        await asyncio.sleep(0)
    beside = await admitted()
    go.set()
    assert (await asked).status_code == 200
    believe(monkeypatch, batcher, speed)  # which it has measured anew
    after = await admitted()

    assert (alone, beside, after) == ((True, None), (False, "overloaded"), (True, None))
