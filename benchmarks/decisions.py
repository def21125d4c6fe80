"""Decisions a second over HTTP: Headlight next to Laya's own server, in one run.

    PYTHONPATH=. python benchmarks/decisions.py [--rounds 3] [--seconds 4] > decisions.json

Both serve one checkpoint of random weights in ModernBERT-base's sizes, with Laya's head of two
layers. Laya's server runs as its makers start it (`python -m laya.serve`), but takes as many
requests at once as are sent; the environment variable LAYA_CPU_AMP gives it bfloat16. In each round
every server in turn gets every workload, the same states and questions as the others, none twice;
the others are stopped meanwhile. The load comes from this process, on the same cores.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from served import machine
from served.load import Answers, Closed, Request, prepare_requests, write_request
from served.servers import BUILT, RunningServer, Server

from tests.laya_models import CORPUS, make_laya

CONNECTIONS, QUESTIONS = (1, 8, 64), (1, 8)  # a request has so many questions of its state
STATE_WORDS = 40
LEAD_SECONDS = 0.5  # of a turn's own load, before what counts
MODEL = "model"  # what both call it
OURS, THEIRS = "Headlight", "laya.serve"
WORDS = " ".join(CORPUS[:2]).split()


@dataclass(frozen=True)
class Decider(Server):
    """How one of the servers is started."""

    folder: str = ""
    half: bool = False

    def command(self, port: int) -> list[str]:
        """Return the command."""
        if self.name.startswith(OURS):
            kind = ["--dtype", "bfloat16"] if self.half else []
            serve = ["-m", "service.cli", "serve", "--port", str(port), "--model", self.folder]
            # 512 questions at once wait longer than a request may by default
            wait = ["--deadline-seconds", "300"]
            return [sys.executable, *serve, "--served-model-name", MODEL, *wait, *kind]
        variables = {
            "LAYA_EXTRA_MODELS": json.dumps({MODEL: self.folder}),
            "LAYA_MODELS": MODEL,
            "LAYA_DEFAULT_MODEL": MODEL,
            "LAYA_HOST": "127.0.0.1",
            "LAYA_PORT": str(port),
            "LAYA_LOG_LEVEL": "warning",
            "LAYA_MAX_CONCURRENT": str(2 * max(CONNECTIONS)),
            **({"LAYA_CPU_AMP": "bf16"} if self.half else {}),
        }
        told = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *told, sys.executable, "-m", "laya.serve"]


def make_body(count: int, chance: random.Random) -> bytes:
    """Return a request of some questions of a state that was not asked before."""
    state = " ".join(chance.choice(WORDS) for _ in range(STATE_WORDS))
    kinds: list[dict[str, Any]] = [
        {
            "type": "choice",
            "instructions": "Which team answers?",
            "criteria": {"billing": "refunds and money", "delivery": "parcels", "sales": None},
        },
        {"type": "noul", "instructions": "Does the customer ask for money back?"},
        {"type": "score", "instructions": "How urgent is it?", "criteria": ["not", "soon", "now"]},
    ]
    questions = {f"q{number}": kinds[number % len(kinds)] for number in range(count)}
    return json.dumps({"model": MODEL, "state": state, "questions": questions}).encode()


def make_requests(path: str, count: int, seed: str, ahead: int) -> Iterator[Request]:
    """Yield requests; the same for the same seed."""
    chance = random.Random(seed)
    return prepare_requests(lambda: (count, write_request(path, make_body(count, chance))), ahead)


def send(
    running: RunningServer, connections: int, count: int, seed: str, seconds: float
) -> Answers:
    """Send a workload for so long, which counts, and before that a while which does not."""
    requests = make_requests(running.server.path, count, f"{seed}, {count}", 8 * connections)

    async def run() -> Answers:
        return await Closed(running.port, requests, connections).run(seconds, LEAD_SECONDS)

    return uvloop.run(run())


def largest_difference(one: bytes, other: bytes) -> float:
    """Return how far the probabilities of two answers are apart; Laya's have four digits."""
    answers = [json.loads(body)["answers"] for body in (one, other)]
    pairs = [(answers[0][name], answers[1][name]) for name in answers[0]]
    return max(
        abs(left - right)
        for of_one, of_other in pairs
        for left, right in zip(chances(of_one), chances(of_other), strict=True)
    )


def chances(answer: dict[str, Any]) -> list[float]:
    """Return the probabilities of an answer."""
    return [answer["noul"]] if answer["type"] == "noul" else [*answer["probabilities"].values()]


def measure(servers: list[Server], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each workload and server, with what ours is to the other."""
    rates: dict[tuple[str, int, int], list[float]] = {}
    furthest: dict[str, float] = {}
    with ExitStack() as stack:
        running = list[RunningServer]()
        for server in servers:
            running.append(RunningServer.start(server))
            stack.callback(running[-1].stop_all)
            running[-1].wait_until_ready()
            running[-1].settle()
            running[-1].pause()
        for number in range(rounds):
            for connections in CONNECTIONS:
                for count in QUESTIONS:
                    kept = dict[str, Answers]()
                    for one in running:
                        one.resume()
                        send(one, connections, count, f"warm {number}", seconds / 4)
                        answers = send(one, connections, count, str(number), seconds)
                        one.settle()
                        one.pause()
                        key = one.server.name, connections, count
                        rates.setdefault(key, []).append(answers.rate)
                        kept[one.server.name] = answers
                        print(*key, f"{answers.rate:.1f} questions a second", file=sys.stderr)
                    for suffix in {name.removeprefix(OURS) for name in kept if OURS in name}:
                        both = kept[OURS + suffix].kept[0], kept[THEIRS + suffix].kept[0]
                        apart = largest_difference(*both)
                        furthest[suffix] = max(apart, furthest.get(suffix, 0.0))
    rows = [
        {
            "server": name,
            "connections": connections,
            "questions": count,
            "questions_per_second": [round(rate, 2) for rate in found],
            "median": round(statistics.median(found), 2),
            "ours_to_it": round(
                statistics.median(
                    ours / it
                    for ours, it in zip(
                        rates[name.replace(THEIRS, OURS), connections, count], found, strict=True
                    )
                ),
                3,
            ),
        }
        for (name, connections, count), found in rates.items()
    ]
    return [*rows, {"largest_difference": {OURS + suffix: far for suffix, far in furthest.items()}}]


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--half", action="store_true", help="bfloat16 as well")
    asked = parser.parse_args()
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"intermediate_size": 1152, "num_attention_heads": 12, "local_attention": 128}
        make_laya(Path(folder) / MODEL, width=768, num_hidden_layers=asked.layers, **sizes)
        servers = list[Server]()
        for half in (False, True) if asked.half else (False,):
            suffix = ", bfloat16" if half else ""
            for name in (OURS, THEIRS):
                servers.append(
                    Decider(
                        name + suffix,
                        path="/v1/systemone",
                        body=lambda texts: make_body(1, random.Random(0)),
                        folder=str(Path(folder) / MODEL),
                        half=half,
                    )
                )
        rows = measure(servers, asked.rounds, asked.seconds)
    print(
        json.dumps(
            {
                "machine": machine.describe_processor(),
                "commit": machine.current_commit(),
                "layers": asked.layers,
                "rows": rows,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
