"""A body that its client has compressed: zstd, as RFC 8878 has it, and no other coding.

TypeSafe's clients send bodies of 1,024 bytes and more so. What it costs is counted before it is
made: the text up to the body's limit, and the window that the frame announces.
"""

import asyncio
import sys

from service.tables.memory import Hold
from service.tables.refusals import Refused
from service.tables.settings import BODY_FACTOR

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN, ZSTD = "identity", "zstd"
CODINGS = frozenset((PLAIN, ZSTD))  # that are read
WINDOW_LOG = 23  # of the largest window: 8 MiB, which no sender may exceed (RFC 9659, section 3)
STEP_BYTES = 64 * 1024  # of text at a time: a fraction of a millisecond
MAGIC = b"\x28\xb5\x2f\xfd"  # with which a frame begins
ONE_SEGMENT = 1 << 5  # in the byte after it: the frame's window is its whole text
NO_FRAME = f'the body is no whole frame of zstd, as "Content-Encoding: {ZSTD}" says'
OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG}


class TextTooLarge(Exception):
    """The text of a compressed body has more bytes than its limit."""


async def read_text(body: bytes, coding: str, limit: int, hold: Hold) -> bytes:
    """Return a body's text, given its Content-Encoding; see `decode_body`."""
    return body if coding.strip().lower() == PLAIN else await decode_body(body, limit, hold)


async def decode_body(body: bytes, limit: int, hold: Hold) -> bytes:
    """Return the text of a compressed body; other tasks run meanwhile.

    Args:
        limit: bytes of text.
        hold: gets the memory of body, window and text.

    Raises:
        Refused: it is no whole frame of zstd, or there is no room for it.
        TextTooLarge: it has more text.
    """
    try:
        size = zstd.get_frame_info(body).decompressed_size
        if size is not None and size > limit:
            raise TextTooLarge
        window = _read_window(body, size or 0)
        decoder, text, data = zstd.ZstdDecompressor(options=OPTIONS), bytearray(), body
        while not decoder.eof:
            held = len(body) + window + BODY_FACTOR * (len(text) + STEP_BYTES)
            hold.take(bodies=held)
            piece = decoder.decompress(data, min(STEP_BYTES, limit + 1 - len(text)))
            if len(text) + len(piece) > limit:
                raise TextTooLarge
            if decoder.needs_input and not decoder.eof:
                raise _no_frame()
            text += piece
            data = b""
            await asyncio.sleep(0)
    except zstd.ZstdError:
        raise _no_frame() from None
    if decoder.unused_data:
        raise _no_frame()
    hold.take(bodies=BODY_FACTOR * len(text))
    return bytes(text)


def _read_window(body: bytes, size: int) -> int:
    """Return the bytes of the window of a frame with a readable head, whose text has `size`.

    Source: RFC 8878, section 3.1.1.1.
    """
    if body[: len(MAGIC)] != MAGIC:  # a frame to skip, which has no text
        raise _no_frame()
    descriptor, announced = body[len(MAGIC)], body[len(MAGIC) + 1]
    if descriptor & ONE_SEGMENT:
        return size
    base = 1 << (10 + (announced >> 3))
    return base + base // 8 * (announced & 7)


def _no_frame() -> Refused:
    """Return the refusal of a body that is not what its header says."""
    return Refused("unsupported_encoding", detail=NO_FRAME)
