"""The tokenizer by itself; what it answers: tests/service/api/tei/test_call.py."""

import asyncio
import threading

import httpx
import pytest

from service.replica import Replica

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = {"ids": [101, 2035, 102]}


async def test_many_who_want_tokens_wait_their_turn(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many characters and ids may wait, and not beyond their deadline."""
    short = {"x-headlight-deadline-ms": "200"}
    aside = replica.reader.aside
    monkeypatch.setattr(aside, "_most", 5 * len(ASKED["ids"]))
    gate = threading.Event()
    aside._thread.submit(gate.wait)
    asking = (client.post("/decode", json=ASKED, headers=short) for _ in range(6))
    answers = await asyncio.gather(*asking)
    late = await client.post("/decode", json=ASKED)
    gate.set()
    while aside.waiting:
        await asyncio.sleep(0.01)

    assert sorted(answer.status_code for answer in answers) == [429, *[504] * 5]
    assert late.status_code == 429, "their places are free once the thread is"
    assert (await client.post("/decode", json=ASKED)).status_code == 200


async def test_a_text_longer_than_the_model_takes_is_tokenized(client: httpx.AsyncClient) -> None:
    """All of it: nothing is cut."""
    answer = await client.post("/tokenize", json={"inputs": "well " * 600})

    assert len(answer.json()[0]) == 602


async def test_a_decoded_special_token_in_the_middle_is_left_out_on_demand(
    client: httpx.AsyncClient,
) -> None:
    """Wherever it stands."""
    ids = [2035, 103, 2003]

    plain = await client.post("/decode", json={"ids": ids})
    whole = await client.post("/decode", json={"ids": ids, "skip_special_tokens": False})

    assert (plain.json(), whole.json()) == (["all is"], ["all [MASK] is"])
