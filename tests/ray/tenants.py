"""A client that floods a service with one key: `python tests/ray/tenants.py PORT KEY COUNT`.

It runs in a process of its own, behind others, so that whoever measures does not feel it.
"""

import asyncio
import json
import os
import sys
from collections import Counter

NICE = 10
AGAIN_SECONDS = 0.5  # after a refusal
BODY = json.dumps(
    {"inputs": ["All is well " * 16] * 8, "encoding": "base64"}
).encode()  # 400 tokens


async def connection(port: int, key: str, codes: Counter[int]) -> None:
    """Ask without end on one connection, which is kept."""
    head = (
        "POST /v1/encode HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        writer.write(head.encode() + BODY)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        await reader.readexactly(int(headers["content-length"]))
        codes[int(lines[0].split()[1])] += 1
        if codes.total() % 100 == 0:
            print(json.dumps(codes), flush=True)
        if lines[0].split()[1] != "200":
            await asyncio.sleep(AGAIN_SECONDS)


async def flood(port: int, key: str, count: int) -> None:
    """So many connections at once."""
    codes: Counter[int] = Counter()
    await asyncio.gather(*(connection(port, key, codes) for _ in range(count)))


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
