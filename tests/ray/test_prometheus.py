"""Prometheus, configured as we ship it, against a real service under load."""

import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import torch
import yaml

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [
    pytest.mark.ray,
    pytest.mark.prove,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed (Debian has it)"
    ),
]

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
CLIENTS, LOAD_SECONDS = 8, 120
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


async def load(service: "Service") -> Journal:
    """Clients side by side, each going through the mix over and over."""
    journal, until = Journal(), time.monotonic() + LOAD_SECONDS

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


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        """What a query gives now."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def counts(self, metric: str, *labels: str) -> Counter[tuple[str, ...]]:
        """A counter as it stands, by labels."""
        found = self.ask(f"sum by ({', '.join(labels)}) ({metric})")
        return Counter(
            {
                tuple(one["metric"][label] for label in labels): int(float(one["value"][1]))
                for one in found
            }
        )


Watching = Callable[["Service"], AbstractContextManager[Prometheus]]


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    """Start Prometheus as shipped, but for the ports."""

    @contextmanager
    def watch(service: "Service") -> Iterator[Prometheus]:
        shutil.copytree(DEPLOY / "prometheus", tmp_path / "prometheus")
        file = tmp_path / "prometheus" / "prometheus.yml"
        settings = yaml.safe_load(file.read_text())
        ours, ray = settings["scrape_configs"]
        ours["static_configs"][0]["targets"] = [f"127.0.0.1:{service.port}"]
        # a Ray of its own has no dashboard, which would list the agents
        (agent,) = service.directory().glob("ray/session_latest/metrics_export_port_*")
        listed = tmp_path / "agents.json"
        listed.write_text(json.dumps([{"targets": [f"127.0.0.1:{agent.read_text().strip()}"]}]))
        ray["file_sd_configs"][0]["files"] = [str(listed)]
        file.write_text(yaml.safe_dump(settings))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
        ]
        with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                yield Prometheus(f"http://{address}")
            finally:
                process.terminate()

    return watch


def grown(
    after: Counter[tuple[str, ...]], before: Counter[tuple[str, ...]]
) -> Counter[tuple[str, ...]]:
    """What was counted in between, without what was not."""
    return +Counter({key: count - before[key] for key, count in after.items()})


def counted(prometheus: Prometheus) -> list[Counter[tuple[str, ...]]]:
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
    written = json.loads((DEPLOY / "grafana" / "headlight.json").read_text())
    return {
        f"{panel['title']}: {target['legendFormat']}": re.sub(
            r"\$(job|instance|replica)\b", ".+", target["expr"].replace("$__rate_interval", "1m")
        )
        for panel in written["panels"]
        for target in panel.get("targets", ())
    }


def test_prometheus_counts_what_the_clients_count_and_every_panel_has_data(
    start: "Start", watching: Watching
) -> None:
    """Two minutes of mixed load on two replicas; every number to the last one."""
    with start("--replicas", "2") as service, watching(service) as prometheus:
        time.sleep(SETTLE_SECONDS)
        before = counted(prometheus)
        journal = asyncio.run(load(service))
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
    assert empty == (set() if torch.cuda.is_available() else {"GPU memory: {{state}} {{replica}}"})
