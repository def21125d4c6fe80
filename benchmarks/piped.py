"""An encoder in a process of its own, which waits on its pipe while another one works.

A line of JSON goes in, batches of texts; a line comes out, the seconds that each took and the first
one's vectors. peers/graph.py answers so too, by itself.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

Batches = list[list[str]]


@dataclass
class PipedEncoder:
    """The process, which has loaded its model."""

    process: "subprocess.Popen[str]"

    def encode(self, batches: Batches) -> tuple[list[float], list[list[float]]]:
        """Return the seconds of each batch, and the first one's vectors."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps(batches), file=self.process.stdin, flush=True)
        seconds, vectors = json.loads(self.process.stdout.readline())
        return seconds, vectors


@contextmanager
def start_encoder(
    command: list[str], environment: Mapping[str, str] | None = None
) -> Iterator[PipedEncoder]:
    """Yield an encoder that has loaded its model; it ends with the block."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise SystemExit(f"{command} ended; run it by itself to see why")
        yield PipedEncoder(process)
    finally:
        process.kill()
        process.wait()


def answer_lines(encode: Callable[[list[str]], Any]) -> None:
    """Be the process: encode what each line holds, until there are no more."""
    print("loaded", flush=True)
    for line in sys.stdin:
        seconds, vectors = [], []
        for texts in json.loads(line):
            begun = perf_counter()
            vectors.append(encode(texts))
            seconds.append(perf_counter() - begun)
        print(json.dumps([seconds, vectors[0].tolist()]), flush=True)
