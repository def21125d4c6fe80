"""What a short request costs the event loop of a replica, next to a bare app that answers the same.

    python benchmarks/front.py [--beside TREE] [--rounds 5] [--seconds 2]
    python benchmarks/front.py --functions 40

The model is replaced by a constant: each batch's results are those of its first batch, there at
once. What is left is the front: uvicorn, the door, parsing, tokenizing, queue, writing, counting.
The bare app is Starlette under the same uvicorn, which parses with orjson, tokenizes in the loop
with the same tokenizer and writes the same vector. Prints, for one short text,

    frames     Python functions that the loop's thread enters for a request, generators resumed
               counted too, by room: a folder of ours, or a package
    calls      the same with those of C functions
    us         of the processor that the loop's thread takes for a request, at 1 and at 64
               connections that are kept; medians of the rounds, least to most, and the ratio to the
               bare app, of which the median is that of the rounds' own
    files      of ours that a request enters on its way through the model, in all threads

Servers are processes of their own that take turns; the load is this process. --beside takes a
second checkout, of another commit for example, into the same run. Neither writes a line a request.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from served import load, texts

HERE = Path(__file__).parent.parent
AHEAD = 3000  # requests a second that are made before the clock starts
ROUTES, CONNECTIONS = ("/embed", "/v1/encode"), (1, 64)
WARM_SECONDS, COUNTED_SECONDS = 1.0, 0.5  # of load before all, and while calls are counted
COLLECTED = 2000, 20, 20  # as a replica has it (service/app.py), for every server
RARE = 0.5  # times a request: what happens less often is no request's
BARE, FILES = "bare", "files"  # servers next to ours: the bare one, and ours with its model

Function = tuple[str, str]  # its file and name


class Calls:
    """What is called while it is on, in the threads that have it as their profile."""

    def __init__(self) -> None:
        self.on, self.frames, self.builtins = False, Counter[Function](), 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count one call."""
        if self.on and event == "call":
            self.frames[frame.f_code.co_filename, frame.f_code.co_qualname] += 1
        elif self.on and event == "c_call":
            self.builtins += 1

    def told(self) -> Any:
        """Return what was called, as JSON has it, and begin anew."""
        told = [[*key, n] for key, n in self.frames.items()], self.builtins
        self.__init__()  # type: ignore[misc]
        return told


async def headlight(real: bool) -> Any:
    """Return a replica as Ray would serve it, without Ray.

    Args:
        real: whether with its model.
    """
    from service.edge import transport
    from service.engine.lanes import Lanes
    from service.replica import Replica
    from service.settings import Settings
    from tests.conftest import application

    launch, known = Lanes.launch, list[Any]()

    async def stored(lanes: Lanes, lane: int, works: Sequence[Any], threads: int) -> Any:
        if not known:
            known.extend(await launch(lanes, lane, works[:1], threads))
        return known * len(works)

    settings = Settings(device="cpu", threads=2, access_log=False)
    settings = settings.model_copy(update={"canary_seconds": 86_400.0})  # it would be told a lie
    if not real:
        Lanes.launch = stored  # type: ignore[assignment,method-assign]
    transport.install()
    return application(await Replica.start(settings, "front"), "/")


def bare() -> Any:
    """Return the least that answers both routes: no limit, no queue, no count, no check."""
    import orjson
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from tokenizers import Tokenizer

    from service.engine.weights import BUNDLED, locate

    tokenizer = Tokenizer.from_file(str(locate(BUNDLED).folder / "tokenizer.json"))
    tokenizer.no_padding()
    vector = [random.Random(7).uniform(-0.2, 0.2) for _ in range(384)]

    async def embed(request: Request) -> Response:
        inputs = orjson.loads(await request.body())["inputs"]
        tokens = sum(len(each.ids) for each in tokenizer.encode_batch(inputs))
        answer = {"data": [vector for _ in inputs], "usage": {"tokens": tokens}}
        return Response(orjson.dumps(answer), media_type="application/json")

    return Starlette(routes=[Route(path, embed, methods=["POST"]) for path in ROUTES])


async def serve(name: str) -> None:
    """Be a server: print its port, then what each line on stdin asks for, as JSON."""
    import uvicorn

    calls = Calls()
    if name == FILES:
        threading.setprofile(calls)  # before the lanes begin
    app = bare() if name == BARE else await headlight(real=name == FILES)
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None)
    asked = {"cpu": time.thread_time, "count": calls.told}
    gc.freeze()
    gc.set_threshold(*COLLECTED)

    def answer() -> None:
        if not (line := sys.stdin.readline().strip()):
            os._exit(0)  # who asked has ended
        sys.setprofile(calls if line == "on" else None)
        calls.on = line == "on"
        if line in asked:
            print(json.dumps(asked[line]()), flush=True)

    asyncio.get_running_loop().add_reader(0, answer)
    bound = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(bound.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve([bound])


class Server:
    """One server in a process of its own."""

    def __init__(self, name: str, tree: Path = HERE) -> None:
        paths = os.pathsep.join(map(str, (tree, tree / "client")))
        self.name, self.tree = name, tree
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.hear())

    def say(self, line: str) -> None:
        print(line, file=self._process.stdin, flush=True)

    def hear(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def load(self, path: str, made: texts.Texts, connections: int, seconds: float) -> int:
        """Send short texts of which none comes twice; return how many were answered."""

        def request() -> tuple[int, bytes]:
            return 1, load.written(path, texts.embed([made.short()]))

        async def send() -> load.Answers:
            requests = load.prepared(request, int(AHEAD * seconds))
            return await load.Closed(self.port, requests, connections).run(seconds)

        return len(asyncio.run(send()).milliseconds)

    def seconds(self, path: str, made: texts.Texts, connections: int, seconds: float) -> float:
        """Return the processor time of the loop's thread for a request."""
        self.say("cpu")
        before = self.hear()
        count = self.load(path, made, connections, seconds)
        self.say("cpu")
        return float(self.hear() - before) / count

    def calls(self, path: str, made: texts.Texts) -> tuple[dict[Function, float], float]:
        """Return the frames of one request by function, and the calls of C functions."""
        self.say("on")
        count = self.load(path, made, 1, COUNTED_SECONDS)
        self.say("count")
        frames, builtins = self.hear()
        return {(file, name): n / count for file, name, n in frames}, builtins / count

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def room(file: str, tree: Path) -> str:
    """Return the folder of ours that a file is in, or else the package or module."""
    if file.startswith(f"{tree}/") and "site-packages" not in file:
        return "/".join(Path(file).relative_to(tree).parts[:2]).removesuffix(".py")
    return re.split(r"site-packages/|python3\.\d+/", file)[-1].partition("/")[0]


def count(server: Server, path: str, made: texts.Texts, functions: int) -> None:
    """Print what is called, by room, and the functions most entered."""
    frames, builtins = server.calls(path, made)
    total, rooms = sum(frames.values()), Counter[str]()
    for (file, _), n in frames.items():
        rooms[room(file, server.tree)] += n  # type: ignore[assignment]
    print(f"POST {path}, {server.name}: {total:.0f} frames, {total + builtins:.0f} calls")
    print("    " + ", ".join(f"{name} {n:.0f}" for name, n in rooms.most_common() if n > RARE))
    for (file, name), n in sorted(frames.items(), key=lambda each: -each[1])[:functions]:
        print(f"  {n:5.1f}  {name}  {'/'.join(Path(file).parts[-2:])}")


def files(tree: Path, made: texts.Texts) -> None:
    """Print which files of ours POST /v1/encode enters, those of its model among them."""
    server = Server(FILES, tree)
    server.load(ROUTES[-1], made, 1, WARM_SECONDS)
    frames, _ = server.calls(ROUTES[-1], made)
    every = {file for (file, _), n in frames.items() if n > RARE}
    own = [file for file in every if room(file, tree).startswith(("service", "model"))]
    print(f"POST {ROUTES[-1]} enters {len(own)} files of {tree}:")
    print("    " + ", ".join(sorted(str(Path(file).relative_to(tree)) for file in own)))
    server.close()


def measure(servers: Sequence[Server], made: texts.Texts, rounds: int, seconds: float) -> None:
    """Print microseconds by route and connections."""
    for path, connections in itertools.product(ROUTES, CONNECTIONS):
        took: dict[str, list[float]] = {server.name: [] for server in servers}
        for turn in range(rounds):
            for server in servers[:: -1 if turn % 2 else 1]:
                one = server.seconds(path, made, connections, seconds)
                took[server.name].append(one * 1e6)
        print(f"POST {path}, connections: {connections}")
        for name, each in took.items():
            ratio = statistics.median(a / b for a, b in zip(each, took[BARE], strict=True))
            spread = f"{statistics.median(each):6.0f} us ({min(each):.0f} to {max(each):.0f})"
            print(f"    {name:9} {spread}, {ratio:.2f} x bare")


def main() -> None:
    """Measure and print, or be a server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--beside", type=Path, help="another checkout, in the same run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--functions", type=int, default=0, help="to name, and nothing is timed")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        import uvloop  # as Ray's workers do

        return uvloop.run(serve(arguments.serve))
    from service.engine.weights import BUNDLED, locate

    sizes = texts.sized(texts.tokens_of(locate(BUNDLED).folder))
    made = texts.Texts(sizes, random.Random(7))
    trees = {"headlight": HERE} | ({"beside": arguments.beside} if arguments.beside else {})
    servers = [Server(name, tree) for name, tree in trees.items()] + [Server(BARE)]
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start")
    for path, server in itertools.product(ROUTES, servers):
        server.load(path, made, 8, WARM_SECONDS)
        count(server, path, made, arguments.functions)
    if not arguments.functions:
        measure(servers, made, arguments.rounds, arguments.seconds)
        for tree in trees.values():
            files(tree, made)
    for server in servers:
        server.close()


if __name__ == "__main__":
    main()
