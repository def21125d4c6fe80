"""Prometheus, configured as we ship it, against a real service under load."""

import asyncio
import json
import math
import os
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch
import yaml

from tests.metric_samples import samples
from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Prometheus, Service, Start, Watching

pytestmark = [pytest.mark.ray, pytest.mark.prove]

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
CLIENTS, LOAD_SECONDS, SHORT_SECONDS = 8, 120, 45
SETTLE_SECONDS = 12  # two scrapes of the service

TEXT = {"inputs": ["All is well"]}
IDS = {"inputs": [{"token_ids": [101, 2035, 2003, 2092, 102]}]}
VECTORS = {"inputs": [{"embeddings": [[0.01] * 384] * 3}]}
MAPS = {**TEXT, "attention": {"layers": [0], "heads": [5]}}
LONG = {"inputs": ["all is well " * 60] * 4}

# Method, path, body, and the label `input` that it is counted under.
MIX: list[tuple[str, str, dict[str, Any] | bytes | None, str]] = [
    ("POST", "/v1/encode", TEXT, "text"),
    ("POST", "/v1/encode", IDS, "tokens"),
    ("POST", "/v1/encode", VECTORS, "embeddings"),
    ("POST", "/v1/encode", MAPS, "text"),
    ("POST", "/v1/encode", LONG, "text"),
    ("POST", "/v1/encode", {"inputs": []}, "none"),
    ("POST", "/v1/encode", b"{", "none"),
    ("GET", "/v1/encode", None, "none"),
    ("GET", "/nowhere", None, "none"),
    ("GET", "/info", None, "none"),
]


@dataclass
class Journal:
    """What the clients counted themselves."""

    requests: Counter[tuple[str, ...]] = field(default_factory=Counter)
    refused: Counter[tuple[str, ...]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def note(self, route: str, given: str, answer: httpx.Response) -> None:
        """Count one answer."""
        replica, told = answer.headers["x-headlight-replica"], answer.json()
        self.requests[route, given, str(answer.status_code), replica] += 1
        if answer.is_error:
            self.refused[told["code"], replica] += 1
        elif "usage" in told:
            self.tokens[(replica,)] += told["usage"]["tokens"]


async def load(service: "Service", seconds: float) -> Journal:
    """Clients side by side, each going through the mix over and over."""
    journal, until = Journal(), time.monotonic() + seconds

    async def client(start: int) -> None:
        sent = start
        async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
            while time.monotonic() < until:
                method, path, body, given = MIX[sent % len(MIX)]
                content = json.dumps(body) if isinstance(body, dict) else body
                headers = {"Content-Type": "application/json"}
                answer = await http.request(method, path, content=content, headers=headers)
                journal.note("other" if path == "/nowhere" else path, given, answer)
                sent += 1

    await asyncio.gather(*map(client, range(CLIENTS)))
    return journal


def grown(
    after: Counter[tuple[str, ...]], before: Counter[tuple[str, ...]]
) -> Counter[tuple[str, ...]]:
    """What was counted in between, without what was not."""
    return +Counter({key: count - before[key] for key, count in after.items()})


def counted(prometheus: "Prometheus") -> list[Counter[tuple[str, ...]]]:
    """The counters that the clients can count too."""
    routes = "|".join({path for _, path, _, _ in MIX} - {"/nowhere"} | {"other"})
    requests = f'headlight_requests_total{{route=~"{routes}"}}'
    return [
        prometheus.counts(requests, "route", "input", "code", "replica"),
        prometheus.counts("headlight_tokens_total", "replica"),
        prometheus.counts("headlight_invalid_inputs_total", "code", "replica"),
    ]


def queries() -> dict[str, str]:
    """Every query of the dashboard, by its panel and legend, as Grafana would send it."""
    dashboard = json.loads((DEPLOY / "grafana" / "headlight.json").read_text())
    return {
        f"{panel['title']}: {target['legendFormat']}": re.sub(
            r"\$\w+", ".*", target["expr"].replace("$__rate_interval", "1m")
        )
        for row in dashboard["panels"]
        for panel in (row, *row.get("panels", ()))
        for target in panel.get("targets", ())
    }


def test_prometheus_counts_what_the_clients_count_and_every_panel_has_data(
    start: "Start", watching: "Watching"
) -> None:
    """Two minutes of mixed load on two replicas; every number to the last one."""
    with start("--replicas", "2") as service, watching(service) as prometheus:
        time.sleep(SETTLE_SECONDS)
        before = counted(prometheus)
        journal = asyncio.run(load(service, LOAD_SECONDS))
        time.sleep(SETTLE_SECONDS)
        after = counted(prometheus)
        given = {name: prometheus.ask(query) for name, query in queries().items()}

    seen = [grown(new, old) for new, old in zip(after, before, strict=True)]
    empty = {
        name
        for name, found in given.items()
        if not any(not math.isnan(float(one["value"][1])) for one in found)
    }
    assert len({replica for *_, replica in journal.requests}) == 2
    assert seen == [journal.requests, journal.tokens, journal.refused]
    of_gpus = {"Memory of a replica: {{replica}} GPU {{state}}"}
    assert empty == (set() if torch.cuda.is_available() else of_gpus)


def each_by_itself(folder: Path) -> None:
    """Put the job that asks each replica in the place of the one that asks them all."""
    settings = yaml.safe_load((folder / "prometheus.yml").read_text())
    settings["scrape_configs"][0] = yaml.safe_load((folder / "replicas.yml").read_text())[
        "scrape_configs"
    ][0]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))


def test_replicas_that_are_asked_one_by_one_give_the_same_series(
    running: "Service", watching: "Watching"
) -> None:
    """The same names and numbers as the page of all, each once, of one service."""
    with watching(running, each_by_itself) as prometheus:
        drill.wait(lambda: len(prometheus.ask('up{job="headlight"} == 1')) == 2, "two targets")
        for _ in range(29):
            assert running.encode("All is well").status_code == 200
        page = {(name, *sorted(labels.items())) for name, labels, _ in samples(running.metrics())}
        counted = drill.total(running, "headlight_requests_total", route="/v1/encode")
        query = 'sum(headlight_requests_total{route="/v1/encode"})'
        drill.wait(lambda: float(prometheus.ask(query)[0]["value"][1]) == counted, query)
        series = [one["metric"] for one in prometheus.ask('{__name__=~"headlight_.+"}')]

    own = {
        (one.pop("__name__"), *sorted((k, v) for k, v in one.items() if k not in ADDED))
        for one in map(dict, series)
    }
    assert {one["instance"] for one in series} == {"headlight"}
    assert len(own) == len(series) - 1  # of one name without a replica there is one each
    assert own == page - {("headlight_replicas_expected",)}  # which no single replica knows


ADDED = {"job", "instance", "target"}  # by Prometheus, to what a replica says


def test_a_replica_that_dies_and_is_replaced_disturbs_no_series(
    start: "Start", watching: "Watching"
) -> None:
    """The survivor's counts stay exact, none runs backwards, no rate leaps, the dead one's end."""
    with start("--replicas", "2") as service, watching(service) as prometheus:
        time.sleep(SETTLE_SECONDS)
        before, begun = counted(prometheus)[0], time.monotonic()
        first = asyncio.run(load(service, SHORT_SECONDS))
        pids = [pid for pid, name in service.family().items() if name == "ServeReplica"]
        os.kill(pids[0], signal.SIGKILL)
        later = asyncio.run(load(service, SHORT_SECONDS))
        time.sleep(SETTLE_SECONDS)
        after, lasted = counted(prometheus)[0], int(time.monotonic() - begun)
        rates = f"sum(rate(headlight_requests_total[30s]))[{lasted}s:5s]"
        (fastest,) = prometheus.ask(f"max_over_time({rates})")
        (resets,) = prometheus.ask(f"max(resets(headlight_requests_total[{lasted}s]))")
        alive = {one["metric"]["replica"] for one in prometheus.ask("headlight_requests_total")}

    journal = first.requests + later.requests
    old, new = ({replica for *_, replica in each.requests} for each in (first, later))
    (survivor,), (dead,) = old & new, old - alive
    kept = Counter({key: count for key, count in journal.items() if key[-1] == survivor})
    seen = Counter({key: n for key, n in grown(after, before).items() if key[-1] == survivor})
    assert seen == kept and float(resets["value"][1]) == 0
    assert dead not in alive and alive == {survivor, *new - {survivor}}
    own = max(first.requests.total(), later.requests.total()) / SHORT_SECONDS
    assert float(fastest["value"][1]) < 1.5 * own
