"""Stands where a shadow would: any text is answered a vector of its own, after a while.

`python tests/ray/another.py PORT SECONDS` listens until its standard input ends. In a process of
its own behind all others: another machine's work would take none of our cores.
"""

import asyncio
import base64
import hashlib
import json
import os
import sys

WIDTH = 384  # of the bundled model, whose price of being read it has
NICE = 10


def vector(text: str) -> dict[str, str]:
    """A text's vector, as POST /v1/encode answers it."""
    digest = hashlib.sha512(text.encode()).digest()  # 64 bytes below 2 ** 62 in each number
    data = bytes(byte & 63 for byte in digest) * (WIDTH * 4 // len(digest))
    return {"data": base64.b64encode(data).decode(), "dtype": "float32"}


async def serve(port: int, seconds: float) -> None:
    """Answer until the standard input ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split()[0])
                texts = json.loads(await reader.readexactly(length))["inputs"]
                await asyncio.sleep(seconds)
                told = {"weights": "another", "data": [{"pooled": vector(each)} for each in texts]}
                body = json.dumps(told).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, OSError):  # it left
            writer.close()

    await asyncio.start_server(answer, "127.0.0.1", port)
    print("listens", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # at once, whatever answers are still owed


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
