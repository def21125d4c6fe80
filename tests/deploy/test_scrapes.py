"""A real Prometheus asks where the shipped and the rendered scrape configurations send it."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

PATIENCE_SECONDS = 30

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian has it)"
)


class Pages(BaseHTTPRequestHandler):
    """Answers each page with its own path."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(f'page{{path="{self.path}"}} 1\n'.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def paged(folder: Path, jobs: list[dict[str, Any]]) -> Iterator[str]:
    """A Prometheus that asks these jobs' targets, all at a server of ours."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            with prometheus(folder, jobs, f"127.0.0.1:{server.server_port}") as url:
                yield url
        finally:
            server.shutdown()


@contextmanager
def prometheus(folder: Path, jobs: list[dict[str, Any]], target: str) -> Iterator[str]:
    """The address of one that asks these jobs' targets, all at one address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        for job in jobs:
            for static in job["static_configs"]:
                static["targets"] = [target]
        file = folder / "prometheus.yml"
        timing = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        file.write_text(yaml.safe_dump({"scrape_configs": [{**job, **timing} for job in jobs]}))
        command = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        probe.close()
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield f"http://{address}"
            finally:
                process.kill()


def pages(url: str, count: int) -> list[dict[str, str]]:
    """The labels of so many pages, once all have been read."""
    deadline, found = time.monotonic() + PATIENCE_SECONDS, list[dict[str, str]]()
    while len(found) < count:
        assert time.monotonic() < deadline, found
        try:
            answer = httpx.get(f"{url}/api/v1/query", params={"query": "page"})
            found = [one["metric"] for one in json.loads(answer.text)["data"]["result"]]
        except (httpx.TransportError, ValueError, KeyError):  # it starts
            found = []
        time.sleep(0.05)
    return found


def as_the_operator(spec: dict[str, Any], number: int) -> dict[str, Any]:
    """A ScrapeConfig of the service as Prometheus' operator writes it."""
    return {
        "job_name": f"scrapeConfig/{number}",
        "metrics_path": spec["metricsPath"],
        "static_configs": spec["staticConfigs"],
        "relabel_configs": [{"target_label": "job", "replacement": spec["jobName"]}],
    }


def relabelings(said: dict[str, Any]) -> list[dict[str, Any]]:
    """The rules of a monitor or a ScrapeConfig as Prometheus has them."""
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return [
        {names.get(name, name): value for name, value in rule.items()}
        for rule in said["relabelings"]
        if rule.get("targetLabel") != "__address__"  # all are at our server already
    ]


@pytest.mark.prove
def test_releases_are_services_of_their_own(render: dict[str, Any], tmp_path: Path) -> None:
    """Two of the chart, of one name; each is asked once, whatever models it has."""
    places = ("team-a", "team-b")
    models = {"team-a": [], "team-b": [{"path": "base", "name": "a"}]}
    values = {
        one: {"namespace": one, "release": "x", "kind": "RayService", "models": models[one]}
        for one in places
    }
    answers = render["rendered"](**values)
    texts = [answers[one]["files"]["scrapeconfig.yaml"] for one in places]
    specs = [one["spec"] for text in texts for one in yaml.safe_load_all(text) if one]
    ours = [one for one in specs if one["jobName"] == "headlight"]
    jobs = [as_the_operator(one, number) for number, one in enumerate(ours)]

    with paged(tmp_path, jobs) as url:
        found = pages(url, 2)

    keys = ("path", "job", "namespace", "release", "instance")
    assert {tuple(one.get(key) for key in keys) for one in found} == {
        ("/metrics", "headlight", "team-a", "x", "x-serve-svc.team-a.svc:8000"),
        ("/metrics", "headlight", "team-b", "x", "x-serve-svc.team-b.svc:8000"),
    }


@pytest.mark.prove
def test_a_monitor_asks_a_cluster_once_whatever_pods_it_has(
    objects: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """Each pod's page has the series of all replicas."""
    (spec,) = (one["spec"] for one in objects["monitors"] if one["kind"] == "ServiceMonitor")
    (endpoint,) = spec["endpoints"]
    served = "__meta_kubernetes_service_name"
    job = {
        "job_name": "operator",
        "metrics_path": endpoint["path"],
        "static_configs": [
            {"targets": [""], "labels": {served: "headlight-serve-svc", "pod": name, "node": name}}
            for name in ("a", "b", "c")
        ],
        "relabel_configs": relabelings(endpoint),
    }

    with paged(tmp_path, [job]) as url:
        found = pages(url, 1)[0]
        targets = httpx.get(f"{url}/api/v1/targets").json()["data"]["activeTargets"]

    assert len(targets) == 1
    assert (found["job"], found["release"]) == ("headlight", "headlight")
    assert "pod" not in found and found["instance"] == "headlight-serve-svc.headlight.svc:8000"
