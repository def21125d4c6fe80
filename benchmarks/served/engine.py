"""The engine without a service: the same kinds of texts through the Lanes, in a process of its own.

What a served figure is compared with: one text for one connection, 32 texts of 16 tokens for 64
connections (what perfect batching would make of them), 32 mixed texts for themselves.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from served.processes import peak_mib
from served.table import Turn, quantile
from served.texts import BATCHES, MANY, ONE, Texts, make_counter, words_with_tokens

ENGINE = "Headlight in process"
MATCHES: dict[str, Callable[[Texts], list[str]]] = {
    ONE.name: ONE.request,
    MANY.name: lambda texts: [texts.unseen(16) for _ in range(32)],
    BATCHES.name: BATCHES.request,
}


@dataclass
class ServedEngine:
    """The process."""

    process: "subprocess.Popen[str]"

    @classmethod
    @contextmanager
    def start(cls) -> Iterator["ServedEngine"]:
        """Load the model; end with the block."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "served.engine"]
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        try:
            if not process.stdout or not process.stdout.readline():
                raise SystemExit("the engine did not load")
            yield cls(process)
        finally:
            process.kill()
            process.wait()

    def run_turn(self, number: int, workload: str, seconds: float) -> Turn:
        """Send one workload for so long."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps([number, workload, seconds]), file=self.process.stdin, flush=True)
        sentences, took, used, milliseconds = json.loads(self.process.stdout.readline())
        return Turn(
            round=number,
            workload=workload,
            server=ENGINE,
            sentences=sentences / took,
            p50=quantile(milliseconds, 0.5),
            p90=quantile(milliseconds, 0.9),
            p99=quantile(milliseconds, 0.99),
            cpu_ms=used * 1000 / sentences,
            peak_mib=peak_mib(self.process.pid),
            cosine=None,
        )


def serve_lines() -> None:
    """Be the process: for each line of stdin, encode for so long and say what it took."""
    from in_process import CORES, make_our_encoder

    from service.files.weights import BUNDLED_MODEL, locate_model

    encode, sizes = (
        make_our_encoder(CORES),
        words_with_tokens(make_counter(locate_model(BUNDLED_MODEL).folder)),
    )
    print("loaded", flush=True)
    for line in sys.stdin:
        number, workload, seconds = json.loads(line)
        texts = Texts(sizes, random.Random(number))
        for _ in range(3):
            encode(MATCHES[workload](texts))
        sentences, took, used, milliseconds = 0, 0.0, 0.0, []
        while took < seconds:
            batch = MATCHES[workload](texts)
            begun, cpu = time.perf_counter(), time.process_time()
            encode(batch)
            milliseconds.append((time.perf_counter() - begun) * 1000)
            took += milliseconds[-1] / 1000
            used += time.process_time() - cpu
            sentences += len(batch)
        print(json.dumps([sentences, took, used, milliseconds]), flush=True)


if __name__ == "__main__":
    serve_lines()
