"""The tokenizer by itself; what it answers: tests/service/api/test_tei.py."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from model.text.tokenizer import Tokenizer
from service.api.tei.tokens import TokenizeRequest, tokenize
from service.pipeline.replica import Replica
from service.pipeline.worker import Worker
from service.shapes.answer import PIECE_BYTES
from service.shapes.record import Record
from service.tables.memory import PROCESS
from tests.conftest import application, connected
from tests.replica_internals import occupied, under

ASKED = {"ids": [101, 2035, 102]}


async def test_many_who_want_tokens_wait_their_turn(replica: Replica) -> None:
    """So many characters and ids may wait, and not beyond their deadline."""
    short = {"x-headlight-deadline-ms": "200"}
    worker = Worker(5 * len(ASKED["ids"]))
    reader = replace(replica.reader, worker=worker)
    async with connected(application(under(replica, reader))) as client:
        async with occupied(worker):
            asking = (client.post("/decode", json=ASKED, headers=short) for _ in range(6))
            answers = await asyncio.gather(*asking)
            late = await client.post("/decode", json=ASKED)
        while worker.waiting:
            await asyncio.sleep(0.01)
        again = await client.post("/decode", json=ASKED)

    assert sorted(answer.status_code for answer in answers) == [429, *[504] * 5]
    assert late.status_code == 429, "their places are free once the thread is"
    assert again.status_code == 200


async def test_ids_are_decoded_off_the_loop(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one call of the library that lets other threads run, however many there are."""
    threads, decode = list[int](), Tokenizer.text_of

    def text_of(tokenizer: Tokenizer, ids: Sequence[int], *, special: bool) -> str:
        """Note the thread."""
        threads.append(threading.get_ident())
        return decode(tokenizer, ids, special=special)

    monkeypatch.setattr(Tokenizer, "text_of", text_of)
    answer = await client.post("/decode", json={"ids": [[2035], [2092]]})

    assert answer.json() == ["all", "well"]
    assert len(threads) == 2 and threading.get_ident() not in threads


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


async def test_tokens_are_written_in_pieces_of_what_is_held(replica: Replica) -> None:
    """One string of all would take uncounted megabytes, and hold up every thread."""
    record, text = Record("/tokenize"), "well, " * 20_000
    deadline = time.monotonic() + 30
    request = TokenizeRequest(inputs=[text, "a"])
    pieces = list(await tokenize(replica, request, deadline, record))

    tokens = orjson.loads(b"".join(pieces))
    assert [len(one) for one in tokens] == [40_002, 3]
    assert max(map(len, pieces)) < PIECE_BYTES
    assert "".join(token["text"] for token in tokens[0][1:-1]) == text.replace(" ", "")
    written = sum(map(len, pieces))
    assert written <= record.hold.bytes["answers"] < 1.3 * written
    assert record.hold.bytes["arrays"] > 200 * 40_000


@pytest.mark.parametrize(
    ("path", "body"),
    [("/tokenize", {"inputs": "a " * 300}), ("/decode", {"ids": [1037] * 2000})],
)
async def test_tokens_that_find_no_memory_are_refused(
    served: Callable[..., httpx.AsyncClient], path: str, body: dict[str, Any]
) -> None:
    """Their lists and their answer count, however small the body is."""
    async with served(max_held_bytes=1) as client:
        answer = await client.post(path, json=body)

    assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
    assert not any(PROCESS.bytes.values())
