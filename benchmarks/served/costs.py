"""What each step of a request takes here: a pass in the lanes, and a service under load."""

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from typing import Any

import torch
import uvloop
from served.load import Answers, Closed, Failed, Request, prepare_requests, write_request
from served.machine import CORES
from served.processes import busy_seconds, cpu_seconds, read_proc
from served.servers import OURS, RunningServer, Server
from served.table import quantile
from served.texts import Texts, embed_body, make_counter, words_with_tokens

from model.packing import Sequence
from service.engine.lanes import Lanes
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import BUNDLED_MODEL, locate_model
from service.shapes.work import Outputs, Work

TOKENS, SIZES = 16, (1, 2, 4, 8, 16, 32, 64)  # of a text, and texts in a batch
ROUNDS, PASS_SECONDS = 3, 0.15
LEAD_SECONDS, TURN_SECONDS = 0.5, 2.5
WAYS = ("alone", "beside", "pair")  # on one core; the same while another lane does; on two cores
LOADS = ((1, 1), (8, 1), (64, 1), (4, 32))  # connections, and texts of a request
SETUPS = ((1, 1), (1, 2), (2, 1))  # replicas, and threads of each
BULK_TOKENS = 28
LOOP = "headlight_event_loop_seconds_total"


def measure_passes() -> dict[str, list[tuple[int, float]]]:
    """Return by way the seconds of a pass of so many tokens.

    On one core it is the median of the lane's own processor time, which counts no waiting; on two
    the least time, as a neighbour on either holds up both.
    """
    return asyncio.run(_measure_passes())


async def _measure_passes() -> dict[str, list[tuple[int, float]]]:
    place, chance = locate_model(BUNDLED_MODEL), random.Random(0)
    lanes = await Lanes.start(partial(load_model, place, torch.device("cpu"), torch.float32), 2)
    use_compiled_pass(lanes.model)
    wanted = Outputs(pooling=lanes.model.pooling)

    def batch(texts: int) -> list[Work]:
        ids = [[chance.randrange(1000, 30_000) for _ in range(TOKENS)] for _ in range(texts)]
        return [Work(Sequence(each), wanted) for each in ids]

    async def timed(lane: int, texts: int, threads: int) -> float:
        took, until = list[float](), time.perf_counter() + PASS_SECONDS
        clock, which = (
            (time.thread_time, statistics.median) if threads == 1 else (time.perf_counter, min)
        )

        def run() -> float:
            begun = clock()
            lanes.run_batch(works, threads)
            return clock() - begun

        while time.perf_counter() < until or len(took) < 3:
            works = batch(texts)
            took.append(await lanes.call_in_lane(lane, run))
        return which(took)

    async def one(way: str, texts: int) -> float:
        if way == "beside":
            return statistics.fmean(await asyncio.gather(*(timed(i, texts, 1) for i in (0, 1))))
        return await timed(0, texts, 2 if way == "pair" else 1)

    took: dict[str, dict[int, list[float]]] = {way: {size: [] for size in SIZES} for way in WAYS}
    for number in range(ROUNDS + 1):
        for size in SIZES:
            for way in WAYS:
                seconds = await one(way, size)
                if number:  # the first makes kernels
                    took[way][size].append(seconds)
    lanes.close()
    return {
        way: [
            (TOKENS * size, min(each) if way == "pair" else statistics.median(each))
            for size, each in by_size.items()
        ]
        for way, by_size in took.items()
    }


def measure_service(replicas: int, threads: int) -> list[dict[str, Any]]:
    """Return what a service that is started here does under each load, and what steps took."""
    options = ("--replicas", str(replicas), "--threads", str(threads), "--access-log", "false")
    running = RunningServer.start(Server(OURS, options=options))
    try:
        running.wait_until_ready()
        sizes, rows = (
            words_with_tokens(make_counter(locate_model(BUNDLED_MODEL).folder)),
            list[dict[str, Any]](),
        )
        warm_up(running, Texts(sizes, random.Random(0)))
        for connections, texts in LOADS:
            made = Texts(sizes, random.Random(connections))
            before = processor_seconds(running)
            everyone, own, wall = busy_seconds(), running.cpu_seconds(), time.perf_counter()
            answers = send_load(running.port, made, connections, texts)
            wall = time.perf_counter() - wall
            others = busy_seconds() - everyone - (running.cpu_seconds() - own)
            loop, proxy = (b - a for a, b in zip(before, processor_seconds(running), strict=True))
            count = answers.sentences // texts
            rows.append(
                {
                    "replicas": replicas,
                    "threads": threads,
                    "connections": connections,
                    "texts": texts,
                    "rate": answers.rate,
                    "p50": quantile(answers.milliseconds, 0.5) / 1000,
                    "p99": quantile(answers.milliseconds, 0.99) / 1000,
                    "loop": loop / count,
                    "proxy": proxy / count,
                    "others": max(
                        0.0, others / wall / CORES - answers.generator_seconds / wall / CORES
                    ),
                }
            )
        return rows
    finally:
        running.stop_all()


def warm_up(running: RunningServer, made: Texts, tries: int = 3) -> None:
    """Send a load that does not count; an HAProxy that is set up anew loses some of the first."""
    running.settle()
    try:
        send_load(running.port, made, 8, 1)
    except Failed:
        if tries == 1:
            raise
        warm_up(running, made, tries - 1)


def send_load(port: int, made: Texts, connections: int, texts: int) -> Answers:
    """Send one load for a while; return its answers."""
    length = TOKENS if texts == 1 else BULK_TOKENS

    def request() -> tuple[int, bytes]:
        return texts, write_request(
            "/embed", embed_body([made.unseen(length) for _ in range(texts)])
        )

    def requests() -> Iterator[Request]:
        return prepare_requests(request, int(800 / texts * (LEAD_SECONDS + TURN_SECONDS)))

    async def send() -> Answers:
        return await Closed(port, requests(), connections).run(TURN_SECONDS, LEAD_SECONDS)

    return uvloop.run(send())


def processor_seconds(running: RunningServer) -> tuple[float, float]:
    """Return processor seconds so far: of the replicas' event loops, and of HAProxy."""
    connection = HTTPConnection("127.0.0.1", running.port, timeout=30)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    loop = sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(LOOP))
    proxies = [pid for pid in running.pids() if read_proc(pid, "comm").startswith(b"haproxy")]
    return loop, sum(cpu_seconds(pid) for pid in proxies)


def measure_all() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what each step costs, and what services of some replicas and threads did."""
    if CORES < 2:
        raise SystemExit("two cores are needed to measure what a second one gives")
    ways = measure_passes()
    print(ways, file=sys.stderr, flush=True)
    rows = [row for replicas, threads in SETUPS for row in measure_service(replicas, threads)]
    plain = {(r["connections"], r["texts"]): r for r in rows if r["threads"] == 2}
    lone, many, bulk = plain[1, 1], plain[64, 1], plain[4, 32]
    steps = {
        "loop": (lone["loop"], many["loop"]),
        "text": max(0.0, bulk["loop"] - many["loop"]) / 31,
        "proxy": (lone["proxy"], many["proxy"]),
    }
    return {**steps, **ways}, rows
