"""Why texts are alike, through POST /v1/similarity: exact, and like any other work."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from model import similarity
from service.api.own import make_parser
from service.engine.fair.rotation import FairThread
from service.pipeline.replica import Replica
from service.questions.similarity import ComparisonRequest, question
from service.shapes.answer import PIECE_BYTES, Answer, AnswerItem
from service.shapes.call import ModelFacts
from service.tables.memory import Hold
from tests.conftest import application, connected, post_of, posted
from tests.replica_internals import pooled_by
from tests.service.api.exact_arrays import Array, array

TEXTS = (Path(__file__).parents[2] / "model" / "texts.txt").read_text("utf-8").splitlines()
PAIRS = 40
DOG, CAT = "A dog ate the food because it was hungry", "Unbelievable headlights"
IDS = {"token_ids": [101, 2035, 2003, 102]}
FILE = "application/vnd.safetensors"


async def ask(client: httpx.AsyncClient, left: Any, *right: Any, **fields: Any) -> dict[str, Any]:
    """What POST /v1/similarity answers."""
    body = {"left": left, "right": right, **fields}
    return await posted(client, "/v1/similarity", body)


async def encoded(client: httpx.AsyncClient, *inputs: Any, **fields: Any) -> list[dict[str, Any]]:
    """What POST /v1/encode answers to each input, its vectors float64."""
    body = {"inputs": inputs, "tokens": True, "encoding": "base64", **fields}
    told = (await client.post("/v1/encode", json=body)).json()["data"]
    return [
        {name: array(one[name]).astype(np.float64) for name in ("pooled", "token_vectors")}
        for one in told
    ]


def cosine(u: Array, v: Array) -> float:
    """Of two vectors, float64."""
    return float(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)))


@pytest.mark.parametrize("level", [pytest.param("token", marks=pytest.mark.prove), "word"])
async def test_a_matrix_sums_to_their_cosines(client: httpx.AsyncClient, level: str) -> None:
    """Of the vectors of /v1/encode, within 1e-6; they are the same to the bit."""
    lefts, worst = PAIRS // 20, 0.0
    rights = [text for text in TEXTS if text.strip() and len(text) < 400][:20]
    vectors = [one["pooled"] for one in await encoded(client, *rights)]

    for left in range(lefts):
        told = await ask(client, rights[left], *rights, level=level, encoding="base64")
        for v, one in zip(vectors, told["right"], strict=True):
            assert one["score"] == cosine(vectors[left], v)
            matrix = array(one["matrix"]).astype(np.float64)
            worst = max(worst, abs(matrix.sum() + one["rest"] - one["score"]))

    assert len(rights) * lefts == PAIRS
    assert worst < 1e-6


async def test_each_share_is_what_brute_force_finds(client: httpx.AsyncClient) -> None:
    """From the token vectors of /v1/encode, in float64."""
    left, right = (one["token_vectors"] for one in await encoded(client, DOG, CAT))
    lengths = np.linalg.norm(left.mean(0)) * np.linalg.norm(right.mean(0))
    expected = left @ right.T / (len(left) * len(right) * lengths)

    (one,) = (await ask(client, DOG, CAT, encoding="base64"))["right"]

    np.testing.assert_allclose(array(one["matrix"]), expected, rtol=0, atol=1e-8)
    np.testing.assert_allclose(array(one["left_share"]), expected.sum(1), rtol=0, atol=1e-7)
    np.testing.assert_allclose(array(one["right_share"]), expected.sum(0), rtol=0, atol=1e-7)


async def test_what_is_left_out_is_in_the_rest(client: httpx.AsyncClient) -> None:
    """Special tokens that are dropped, and pairs that are not listed."""
    (whole,) = (await ask(client, DOG, CAT))["right"]
    (bare,) = (await ask(client, DOG, CAT, specials="drop"))["right"]
    (best,) = (await ask(client, DOG, CAT, specials="drop", form="top", k=3))["right"]
    matrix = np.array(whole["matrix"])

    assert bare["axis"] == [1, 2]
    np.testing.assert_allclose(bare["matrix"], matrix[1:-1, 1:-1], rtol=0, atol=1e-8)
    assert whole["rest"] == 0
    assert bare["rest"] == pytest.approx(whole["score"] - matrix[1:-1, 1:-1].sum(), abs=1e-6)
    shares = sorted(matrix[1:-1, 1:-1].flatten(), key=abs, reverse=True)[:3]
    assert [share for *_, share in best["pairs"]] == pytest.approx(shares)
    assert all(matrix[i, j] == pytest.approx(share) for i, j, share in best["pairs"])
    assert best["rest"] == pytest.approx(best["score"] - sum(shares), abs=1e-6)
    assert sum(best["left_share"]) == pytest.approx(matrix[1:-1, 1:-1].sum(), abs=1e-6)


async def test_a_text_is_compared_the_same_among_others(client: httpx.AsyncClient) -> None:
    """To the bit, whatever it shares its batches with; gates hold on both sides."""
    for fields in ({}, {"gates": [{"layer": 5, "head": 11, "scale": 0.0}]}):
        alone = await ask(client, DOG, CAT, **fields)
        among = await ask(client, DOG, "Yes", IDS, CAT, *TEXTS[:5], **fields, truncate="right")

        assert among["right"][2] == alone["right"][0]


async def test_a_gate_changes_the_score_as_it_changes_the_vectors(
    client: httpx.AsyncClient,
) -> None:
    """To the vectors' own cosine."""
    gates = [{"layer": 5, "head": 11, "scale": 0.0}]
    u, v = (one["pooled"] for one in await encoded(client, DOG, CAT, gates=gates))

    (one,) = (await ask(client, DOG, CAT, gates=gates))["right"]

    assert one["score"] == cosine(u, v)


async def test_safetensors_and_base64_hold_what_json_shows(client: httpx.AsyncClient) -> None:
    """The same numbers, in the formats of /v1/encode."""
    body = {"left": DOG, "right": [CAT, IDS], "form": "top", "k": 2}
    told = await ask(client, DOG, CAT, IDS, form="top", k=2)
    based = await ask(client, DOG, CAT, IDS, form="top", k=2, encoding="base64")
    answer = await client.post("/v1/similarity", json=body, headers={"accept": FILE})
    arrays = load(answer.content)
    size = int.from_bytes(answer.content[:8], "little")
    facts = json.loads(json.loads(answer.content[8 : 8 + size])["__metadata__"]["headlight"])

    for index, (one, other) in enumerate(zip(told["right"], based["right"], strict=True)):
        pairs = [array(other["pairs"][name]).tolist() for name in ("left", "right", "shares")]
        assert one["pairs"] == [list(pair) for pair in zip(*pairs, strict=True)]
        for name in ("left", "right", "shares"):
            filed = arrays[f"{index}.pairs.{name}"]
            np.testing.assert_array_equal(filed, array(other["pairs"][name]))
        assert facts["right"][index]["score"] == one["score"]
    assert facts["left"] == told["left"]


async def test_each_side_may_have_a_prompt_of_its_own(
    prompted: Replica,
) -> None:
    """As texts that begin with it; its tokens are the text's own."""
    async with connected(application(prompted)) as client:
        named = {"left": "query", "right": "document"}
        told = await ask(client, "well", "well", prompt_name=named, form="score")
        plain = {"left": "document", "right": "document"}
        spelt = await ask(client, "search for: well", "well", prompt_name=plain, form="score")
        both = await ask(client, "well", "well", prompt_name="query", form="score")

    assert told["right"][0]["score"] == spelt["right"][0]["score"] < 0.99
    assert told["left"]["length"] > told["right"][0]["length"]
    assert both["right"][0]["score"] == pytest.approx(1)


async def test_what_is_no_sum_is_refused_but_for_its_score(replica: Replica) -> None:
    """With what is answered instead, before any work."""
    client, body = connected(application(replica)), {"left": DOG, "right": [CAT]}
    with pooled_by(replica, "max"):
        refused = await client.post("/v1/similarity", json=body)
        dry = await client.post("/v1/similarity?dry_run=true", json=body)
        scored = await client.post("/v1/similarity", json={**body, "form": "score"})

    assert (refused.status_code, refused.json()["code"]) == (422, "similarity_not_explainable")
    assert 'pooling "max"' in refused.json()["detail"]
    assert dry.json()["code"] == refused.json()["code"]
    assert scored.status_code == 200


async def test_an_answer_too_large_is_refused(
    client: httpx.AsyncClient, served: Callable[..., httpx.AsyncClient]
) -> None:
    """A matrix with its bytes and the limit, also of a dry run; and a sweep beside a score."""
    long = {"token_ids": [7] * 250}
    body: dict[str, Any] = {"left": long, "right": [long] * 37}

    dry = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
    answer = (await client.post("/v1/similarity", json=body)).json()
    async with served(max_answer_bytes=100) as few:
        swept = {"left": DOG, "right": [CAT], "form": "score", "sweep": "heads"}
        refused = await few.post("/v1/similarity", json=swept)

    assert dry["code"] == answer["code"] == refused.json()["code"] == "answer_too_large"
    assert (answer["bytes"], answer["limit"]) == (dry["answer_bytes"], 2**23)


async def test_a_dry_run_says_what_the_answer_weighs(client: httpx.AsyncClient) -> None:
    """To the byte, in every form."""
    for fields in ({}, {"form": "top", "k": 5}, {"form": "score"}, {"dtype": "float16"}):
        body = {"left": DOG, "right": [CAT, IDS], **fields}
        dry = (await client.post("/v1/similarity?dry_run=true", json=body)).json()
        answer = await client.post("/v1/similarity", json=body, headers={"accept": FILE})
        usage = (await ask(client, DOG, CAT, IDS, **fields))["usage"]

        size = sum(each.nbytes for each in load(answer.content).values())
        assert dry["answer_bytes"] == usage["answer_bytes"] == size
        assert dry["tokens"] == usage["tokens"]


@pytest.mark.parametrize("form", ["full", "top"])
async def test_a_large_matrix_is_made_in_steps_of_some_rows(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Which change nothing but the last bits of a sum, and let others in between."""
    left, right = {"token_ids": [7, 9, 11] * 67}, {"token_ids": [8, 10] * 101}
    whole = (await ask(client, left, right, form=form))["right"][0]
    steps, run = [], FairThread.run

    async def counted(self: FairThread, work: Any) -> Any:
        steps.append(work)
        return await run(self, work)

    monkeypatch.setattr(FairThread, "run", counted)
    monkeypatch.setattr(similarity, "BLOCK_CELLS", 5000, raising=False)
    monkeypatch.setattr(question, "STEP_CELLS", 4000)
    told = (await ask(client, left, right, form=form))["right"][0]

    assert len(steps) == 9
    for name in {"matrix", "pairs", "left_share", "right_share", "rest"} & told.keys():
        np.testing.assert_allclose(told[name], whole[name], rtol=1e-6, atol=1e-12)


async def test_what_a_comparison_holds_is_reserved(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token vectors, their float64 of the left text and twice of one on the right, a block."""
    reserved, take = list[int](), Hold.take

    def watched(hold: Hold, **sizes: int) -> None:
        reserved.extend(size for kind, size in sizes.items() if kind == "arrays")
        take(hold, **sizes)

    monkeypatch.setattr(Hold, "take", watched)
    left, short, long = ({"token_ids": [7] * tokens} for tokens in (101, 31, 211))
    told = await ask(client, left, short, long, form="top", k=1)

    tokens, doubles, cells = 101 + 31 + 211, 101 + 2 * 211, 101 * 211
    held = 384 * (4 * tokens + 8 * doubles) + 16 * cells
    assert reserved == [told["usage"]["answer_bytes"] + held]


async def test_pairs_are_written_in_pieces_one_text_after_the_other() -> None:
    """No text is looked at before those before it are written, nor many rows at once."""
    rows, looked = 6007, list[int]()

    class Columns(dict[str, Array]):
        """The arrays of a text, which tell when they are read."""

        def items(self) -> Any:
            looked.append(id(self))
            return super().items()

    places = np.arange(rows, dtype=np.int32)
    columns = {"pairs.left": places, "pairs.right": places, "pairs.shares": places / np.float32(7)}
    texts = [AnswerItem(1, {"score": 1.0}, arrays=Columns(columns)) for _ in range(3)]
    body, served = b'{"left":"a","right":["b"],"form":"top"}', ModelFacts(["m"], (), 6, 99, 9)
    asked = make_parser(ComparisonRequest)(body, post_of("/v1/similarity"), served)

    pieces = asked.pieces(Answer({"model": "m"}, [AnswerItem(1, {}), *texts], {"tokens": 3}))
    whole = [next(pieces)]
    while b'"pairs"' not in whole[-1]:
        whole.append(next(pieces))

    assert set(looked) == {id(texts[0].arrays)}
    whole += pieces
    assert max(map(len, whole)) < 2 * PIECE_BYTES
    pairs = [list(row) for row in zip(*(each.tolist() for each in columns.values()), strict=True)]
    told = json.loads(b"".join(whole))
    assert told["right"] == [{"score": 1.0, "pairs": pairs}] * 3
