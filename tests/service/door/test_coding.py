"""Bodies that a client has compressed: read as their text, within the limits of any body."""

import asyncio
import os
import random
from collections.abc import Callable

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.door.coding import STEP_BYTES, WINDOW_LOG, TextTooLarge, decode_body, zstd
from service.shapes.answer import JSON
from service.tables.memory import Hold, Memory
from service.tables.refusals import Refused
from service.tables.settings import BODY_FACTOR

MIB = 1024 * 1024
CODED = {"content-encoding": "zstd", "content-type": JSON}
Parameter = zstd.CompressionParameter


def text_of(size: int) -> bytes:
    """Letters that compress to about half."""
    return bytes(random.Random(0).choices(range(97, 123), k=size))


def unsized(text: bytes, window_log: int = 17) -> bytes:
    """A frame that does not say how long its text is, with a window of its own."""
    packer = zstd.ZstdCompressor(options={Parameter.window_log: window_log})
    return packer.compress(text) + packer.flush()


class Counted(Hold):
    """Remembers the most bytes that it held."""

    most = 0

    def take(self, **sizes: int) -> None:
        super().take(**sizes)
        self.most = max(self.most, self.bytes["bodies"])


def held(body: bytes, limit: int = MIB, room: int = 64 * MIB) -> tuple[bytes | None, int, int]:
    """The text of a body, None if it is too large; the most bytes held, and those at the end."""
    hold = Counted(Memory(), room)
    try:
        text = asyncio.run(decode_body(body, limit, hold))
    except TextTooLarge:
        return None, hold.most, 0
    return text, hold.most, hold.bytes["bodies"]


@pytest.mark.parametrize("size", [0, 1, 7, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 300_007])
@pytest.mark.parametrize("pack", [zstd.compress, unsized])
def test_a_body_is_its_text(size: int, pack: Callable[[bytes], bytes]) -> None:
    """Whether or not its frame says how long it is."""
    text = text_of(size)

    assert held(pack(text))[0] == text


@pytest.mark.parametrize("pack", [zstd.compress, unsized])
def test_a_bomb_is_never_unpacked_beyond_the_limit(pack: Callable[[bytes], bytes]) -> None:
    """Its memory stays that of a body of the limit, its window and one step."""
    bomb = pack(bytes(256 * MIB))
    assert len(bomb) < 32 * 1024
    text, most, _ = held(bomb)

    assert text is None
    assert most <= BODY_FACTOR * (MIB + STEP_BYTES) + (1 << 17) + len(bomb)


def test_text_and_window_are_counted_before_they_are_made() -> None:
    """And what there is no room for is refused as any body is; afterwards the text alone counts."""
    text = text_of(300_007)
    for body, window in ((zstd.compress(text), len(text)), (unsized(text), 1 << 17)):
        made, most, left = held(body)
        assert made == text and left == BODY_FACTOR * len(text)
        assert most > window + BODY_FACTOR * (len(text) - STEP_BYTES)
        with pytest.raises(Refused) as refused:
            held(body, room=window + BODY_FACTOR * len(text) // 2)
        assert refused.value.code == "overloaded"


def test_a_window_that_no_sender_may_ask_for_is_refused() -> None:
    """RFC 9659: at most 8 MiB."""
    assert held(unsized(b"a" * 999, WINDOW_LOG))[0] == b"a" * 999
    with pytest.raises(Refused) as refused:
        held(unsized(b"a" * 999, WINDOW_LOG + 1))
    assert refused.value.code == "unsupported_encoding"


PACKED = zstd.compress(text_of(2003), options={Parameter.checksum_flag: 1})
SKIPPED = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"inputs": ["All is well"]}',
        *(PACKED[:end] for end in range(1, len(PACKED), 97)),
        PACKED[:-1],
        PACKED + b"\0",
        PACKED + PACKED,
        PACKED[:-1] + bytes([PACKED[-1] ^ 1]),
        SKIPPED,
        SKIPPED + PACKED,
    ],
)
def test_what_is_no_whole_frame_is_refused(body: bytes) -> None:
    """Cut, followed by more, changed, or no zstd at all."""
    with pytest.raises(Refused) as refused:
        held(body)

    assert refused.value.code == "unsupported_encoding"


@given(st.binary(max_size=64), st.integers(0, 40))
def test_any_bytes_are_read_or_refused(more: bytes, kept: int) -> None:
    """Whatever follows the beginning of a frame."""
    try:
        held(PACKED[:kept] + more, limit=4096)
    except Refused as refused:
        assert refused.code == "unsupported_encoding"


async def test_the_answer_is_that_of_the_plain_body(client: httpx.AsyncClient) -> None:
    """On a route of any API, with any spelling of the coding."""
    for path, body in (
        ("/v1/encode", {"inputs": ["All is well " * 40]}),
        ("/v1/embeddings", {"input": ["All is well " * 40, "a" * 20_000], "truncate": "right"}),
    ):
        text = orjson.dumps(body)
        plain = await client.post(path, content=text, headers={"content-type": JSON})
        for coding in ("zstd", "ZSTD"):
            headers = {**CODED, "content-encoding": coding}
            told = await client.post(path, content=zstd.compress(text), headers=headers)
            assert told.status_code == plain.status_code == 200
            assert told.json()["data"] == plain.json()["data"]


async def test_each_api_refuses_what_it_cannot_read(client: httpx.AsyncClient) -> None:
    """In its own form; limits are those of the text, and keys count twice as they do in it."""
    asked = {
        "broken": (b"no frame", "unsupported_encoding", 415),
        "twice": (zstd.compress(b'{"inputs": "a", "inputs": "b"}'), "duplicate_key", 400),
        "large": (zstd.compress(b" " * 3 * MIB), "body_too_large", 413),
        "no JSON": (zstd.compress(b"[" * 9), "invalid_json", 400),
        "incompressible": (os.urandom(3 * MIB), "body_too_large", 413),
    }
    for body, code, status in asked.values():
        refused = await client.post("/v1/encode", content=body, headers=CODED)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    refused = await client.post("/v1/embeddings", content=b"no frame", headers=CODED)
    assert refused.status_code == 415
    assert "no whole frame of zstd" in refused.json()["error"]["message"]
