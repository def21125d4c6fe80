"""deploy/serve on a cluster started as docs/deploy.md says: `ray start`, `serve deploy`."""

import copy
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from service.cluster import ingress, network, ray_directory
from service.tables.settings import Settings
from tests.manifests import manifests
from tests.ray import drill
from tests.ray.conftest import users_own
from tests.several_models import save_embedder

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
START_SECONDS, DEPLOY_SECONDS = 60, 240
PAGE = (ROOT / "docs" / "deploy.md").read_text()
BODY = {"inputs": ["All is well"], "encoding": "base64"}
# binary inference: JSON that names a tensor, then its bytes
TENSOR = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3]}
NAMED = json.dumps({"inputs": [{**TENSOR, "parameters": {"binary_data_size": 24}}]}).encode()
BINARY = NAMED + struct.pack("<3q", 101, 2035, 102)
ANNOUNCED = {"inference-header-content-length": str(len(NAMED))}


def commands(heading: str) -> list[str]:
    """The commands below a heading of docs/deploy.md."""
    found = re.search(rf"^## {heading}\n.*?```sh\n(.*?)```", PAGE, re.M | re.S)
    assert found
    return found[1].splitlines()


LONG = {"inputs": ["well " * 200] * 30, "encoding": "base64"}  # of seconds
NOTHING: dict[str, Any] = {"applications": []}
Change = Callable[[dict[str, Any]], None]

TOKEN, VARIABLES, START, DEPLOY = commands("A Ray cluster")
(TWO,) = commands("Several models at one address")
WIDTHS = {"all-MiniLM-L6-v2": 384, "transformer-base": 512}  # of deploy/serve/two-models.yaml
ENDED = {"RUNNING", "DEPLOY_FAILED", "UNHEALTHY"}
HEAD = "127.0.0.2"  # of the node, as a refusal names it


@dataclass
class Cluster:
    """One node, started by `ray start`.

    Args:
        agent, export: ports of Ray's agent: its own pages, and its metrics.
    """

    environment: dict[str, str]
    dashboard: str
    port: int
    directory: Path
    agent: int
    export: int

    @property
    def url(self) -> str:
        """Where the applications answer."""
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, command: str, change: Change = lambda _: None) -> dict[str, Any]:
        """Run a `serve deploy`, and wait until each application answers or has failed.

        Ray says that an application runs a moment before HAProxy is told.
        """
        named = self.send(command, change)
        found = self.wait(
            lambda found: (
                found.keys() == named and {each["status"] for each in found.values()} <= ENDED
            )
        )
        for each in found.values():
            if each["status"] == "RUNNING":
                path = each["route_prefix"].rstrip("/")
                drill.wait(lambda path=path: ready(f"{self.url}{path}/ready"), "HAProxy")
        return found

    def send(self, command: str, change: Change = lambda _: None) -> set[str]:
        """Run a `serve deploy` of a file, at a port of this cluster; its applications."""
        *words, name = shlex.split(command)
        configuration = self.configuration(name, change)
        sent = self.directory / Path(name).name
        sent.write_text(yaml.safe_dump(configuration))
        self.serve(*words[1:], str(sent))
        return {each["name"] for each in configuration["applications"]}

    def put(self, change: Change = lambda _: None) -> None:
        """Do what `serve deploy` of deploy/serve/laptop.yaml does, without its seconds to start."""
        configuration = self.configuration(DEPLOY.split()[-1], change)
        self.ask("/api/serve/applications/", "PUT", json=configuration)

    def configuration(self, name: str, change: Change) -> Any:
        """A file of deploy/serve, changed, at a port of this cluster."""
        configuration = yaml.safe_load((ROOT / name).read_text())
        configuration["http_options"]["port"] = self.port
        change(configuration)
        return configuration

    @property
    def plain(self) -> dict[str, str]:
        """The environment of a shell that has the cluster's token in its home, and no more."""
        shell = {name: self.environment[name] for name in ("HOME", "PATH", "PYTHONPATH")}
        return shell | ingress.TOKEN_AUTH_ENV

    def status(self, said: str = "") -> dict[str, tuple[str, str]]:
        """Of a `serve status`, or of one now: each application's state, and the last line said."""
        found = yaml.safe_load(said or self.serve("status"))["applications"]
        return {name: (each["status"], reason(each)) for name, each in found.items()}

    def serve(self, *words: str) -> str:
        """Run a command of Ray's in a shell that has the cluster's token in its home."""
        done = subprocess.run(
            [str(BIN / "serve"), words[0], "--address", self.dashboard, *words[1:]],
            env=self.plain,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def applications(self) -> dict[str, Any]:
        """What Ray says of each application."""
        found: dict[str, Any] = json.loads(self.ask("/api/serve/applications/"))["applications"]
        return found

    def ask(self, path: str, method: str = "GET", **body: Any) -> str:
        """What the dashboard answers."""
        token = (self.directory / ".ray" / "auth_token").read_text().strip()
        bearer = {"Authorization": f"Bearer {token}"}
        url = f"{self.dashboard}{path}"
        answer = httpx.request(method, url, headers=bearer, timeout=30, **body)
        return answer.raise_for_status().text

    def wait(self, said: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until Ray says so of its applications."""
        until = time.monotonic() + DEPLOY_SECONDS
        while not said(found := self.applications()):
            assert time.monotonic() < until, found
            time.sleep(0.2)
        return found


def ready(url: str) -> bool:
    """Whether a path answers 200."""
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=30).is_success
    return False


def reason(application: dict[str, Any]) -> str:
    """The last line that Ray says of an application, or of its deployment."""
    said = [each["message"] for each in application["deployments"].values()]
    lines = "\n".join([application["message"], *said]).strip().splitlines()
    return str(lines[-1]) if lines else ""


def run(found: dict[str, Any], replicas: int) -> bool:
    """Whether each application runs, with so many replicas and no others that come or go."""
    return bool(found) and all(
        application["status"] == "RUNNING"
        and [each["state"] for each in application["deployments"]["Encoder"]["replicas"]]
        == ["RUNNING"] * replicas
        for application in found.values()
    )


@contextmanager
def cluster(variables: str, *flags: str) -> Iterator[Cluster]:
    """Start a cluster of one node with variables from a shell file; end what it started.

    Args:
        flags: further ones of `ray start`; what it writes itself is in ray.log.
    """
    with (
        ray_directory.make_directory(None) as directory,
        network.reserve_ports(without=8000) as block,
    ):
        port, dashboard, gcs, agent, export, first = free(6)
        # what two clusters of one machine cannot share: ports, paths and tokens
        placed = ingress.own_ray_variables(Settings(), block, directory, cores=2)
        environment = {
            **users_own(),
            **placed,
            "HOME": str(directory),  # where the token goes
            "PATH": f"{BIN}:{Path(placed[ingress.PROGRAM]).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",  # a model that is not here is known at once
        }
        del environment["RAY_AUTH_TOKEN"]
        subprocess.run(["bash", "-c", TOKEN], env=environment, check=True)
        start = (
            f"{variables}; exec {START} --block --num-cpus=2 --port={gcs}"
            f" --node-ip-address=127.0.0.1 --dashboard-port={dashboard}"
            f" --dashboard-agent-listen-port={agent} --metrics-export-port={export}"
            f" --ray-client-server-port={first} --object-store-memory={80 << 20}"
            f" --temp-dir={directory / 'ray'} {' '.join(flags)}"
        )
        with (directory / "ray.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-c", start], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        try:
            url = f"http://127.0.0.1:{dashboard}"
            here = Cluster(environment, url, port, directory, agent, export)
            up(here, process, directory / "ray.log")
            yield here
        finally:
            process.kill()  # the sweeper ends the rest: nothing of a test needs to drain
            process.wait()


def free(count: int) -> list[int]:
    """Ports on which nothing listens now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def up(here: Cluster, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until Ray's dashboard answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        with suppress(httpx.HTTPError):
            here.applications()
            return
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def scaled(replicas: int) -> Change:
    """A configuration with so many replicas of each model."""

    def change(configuration: dict[str, Any]) -> None:
        for application in configuration["applications"]:
            application["deployments"][0]["num_replicas"] = replicas

    return change


def ask(url: str, stop: threading.Event, seen: "Counter[int | str]", data: set[str]) -> None:
    """Ask over one connection, again and again; count what comes back."""
    with httpx.Client(timeout=30) as client:
        while not stop.is_set():
            try:
                answer = client.post(f"{url}/v1/encode", json=BODY)
            except httpx.TransportError as error:
                seen[type(error).__name__] += 1
                continue
            seen[answer.status_code] += 1
            if answer.status_code == 200:
                data.add(str(answer.json()["data"]))


BUILD = "service.cluster.start_report.StartFailed: "
# An application's change, and the line that `serve status` ends with
WRONG: dict[str, tuple[Change, str]] = {
    "model": (
        lambda one: one["args"].update(model="nobody/nothing"),
        "service.files.weights.ModelNotFound: no folder nobody/nothing@main, its files are not "
        "all in the cache, and HF_HUB_OFFLINE is set",
    ),
    "argument": (
        lambda one: one["args"].update(thread=1),
        f'{BUILD}args.thread: no such setting; did you mean "threads"?',
    ),
    "elsewhere": (
        lambda one: one["args"].update(api_keys="canary-Key_123456789"),
        f"{BUILD}args.api_keys: not here but in a file on the nodes that api_keys_file names",
    ),
    "variables": (
        lambda one: one.update(runtime_env={"env_vars": {"RAY_USAGE_STATS_ENABLED": "1"}}),
        f"{BUILD}node {HEAD}: it cannot serve: RAY_USAGE_STATS_ENABLED: is '1'; must be 0",
    ),
    "replica": (
        lambda one: one["deployments"][0].update(max_ongoing_requests=5),
        f"{BUILD}max_ongoing_requests: leave it out; max_waiting_requests in args decides it",
    ),
}


def spoilt(*names: str) -> Change:
    """A configuration whose applications are one wrong in each way of WRONG."""

    def change(file: dict[str, Any]) -> None:
        (right,) = file["applications"]
        file["applications"] = []
        for name in names:
            one = {**copy.deepcopy(right), "name": name, "route_prefix": f"/{name}"}
            WRONG[name][0](one)
            file["applications"].append(one)

    return change


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """A cluster with a processor for one replica; Ray tries a wrong one once, not thrice."""
    with cluster(
        f"{VARIABLES}; export RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT=1",
        f"--num-cpus=1 --node-ip-address={HEAD}",
    ) as here:
        yield here


@pytest.mark.prove
def test_what_cannot_work_is_the_last_line_of_serve_status(small: Cluster) -> None:
    """Each application's own; a secret in it is not repeated."""
    small.deploy(DEPLOY, spoilt(*WRONG))

    said = small.serve("status")
    assert small.status(said) == {name: ("DEPLOY_FAILED", WRONG[name][1]) for name in WRONG}
    assert "canary-Key" not in said


@pytest.mark.prove
def test_a_wrong_update_costs_the_old_version_no_request(small: Cluster) -> None:
    """Ray names no replica to HAProxy from the moment it builds the new version, nor after that.

    What was wrong is the last line that Ray says of it.
    """
    change, line = WRONG["model"]

    def wrong(configuration: dict[str, Any]) -> None:
        change(configuration["applications"][0])

    def update() -> None:
        small.put(wrong)
        small.wait(lambda found: found["headlight"]["status"] == "DEPLOY_FAILED")
        time.sleep(1)

    small.put()
    small.wait(lambda found: run(found, 1))
    drill.wait(lambda: ready(f"{small.url}/ready"), "HAProxy")
    journal = drill.during(update, small.port, kept=4, pause=0.25)

    assert journal.lost == [] and set(journal.codes) == {200} and len(journal.data) == 1
    page = httpx.get(f"{small.url}/metrics").text.splitlines()
    assert {"headlight_replicas_expected 1", "headlight_scrape_incomplete 0"} <= set(page)
    assert reason(small.applications()["headlight"]) == line


@pytest.mark.prove
def test_a_cluster_of_ray_env_serves_scales_and_hosts_two_models() -> None:
    """The whole of deploy/serve/, on one cluster: right answers, 1 -> 2 -> 1, side by side."""
    with cluster(VARIABLES) as here:
        here.deploy(DEPLOY)
        (served,) = here.wait(lambda found: run(found, 1)).values()
        options = served["deployments"]["Encoder"]["deployment_config"]
        assert (options["max_ongoing_requests"], options["max_queued_requests"]) == (768, 768)
        assert options["graceful_shutdown_timeout_s"] == 60

        item = httpx.post(
            f"{here.url}/v1/encode",
            json={"inputs": ["All is well"], "attention": {"layers": [0], "heads": [5]}},
        ).json()["data"][0]
        assert item["attention"]["maps"]["0"]["5"][3][1] == pytest.approx(0.618, abs=0.01)

        scales_without_a_lost_request(here)
        two_models_answer(here)
        an_update_leaves_the_other_model_alone(here)
        an_application_that_a_file_lacks_is_removed(here)
        refuses_what_cannot_differ(here)
        a_model_that_cannot_start_leaves_the_other_serving(here)


@pytest.mark.prove
def test_a_container_that_ray_starts_shows_the_replicas_lines() -> None:
    """As the chart starts it; each line whole, among Ray's own."""
    service = yaml.safe_load(manifests()["rayservice.yaml"])
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"]
    flags = [f"--{name}" for name, value in head["rayStartParams"].items() if value == "true"]
    assert flags == ["--no-redirect-output"]

    with cluster(VARIABLES, *flags) as here:
        here.deploy(DEPLOY)
        answer = httpx.post(f"{here.url}/v1/encode", json=BODY, timeout=30)
        asked = answer.headers["x-request-id"]
        httpx.get(f"{here.url}/metrics", timeout=30)  # the replica tells of its requests first
        said = (here.directory / "ray.log").read_text(errors="replace").splitlines()

        assert not list(here.directory.glob("ray/session_2*/logs/worker-*"))
    ours = [json.loads(line) for line in said if line.startswith('{"ts"')]
    assert {"started", "request"} <= {line["event"] for line in ours}
    assert asked in {line.get("request_id") for line in ours}


def scales_without_a_lost_request(here: Cluster) -> None:
    """1 -> 2 -> 1 by editing num_replicas, under four clients."""
    stop, seen, data = threading.Event(), Counter[int | str](), set[str]()
    clients = [
        threading.Thread(target=ask, args=(here.url, stop, seen, data), daemon=True)
        for _ in range(4)
    ]
    for client in clients:
        client.start()
    try:
        for replicas in (2, 1):
            before = seen[200]
            here.deploy(DEPLOY, scaled(replicas))
            here.wait(lambda found, replicas=replicas: run(found, replicas))
            time.sleep(3)  # with HAProxy on the new list
            page = httpx.get(f"{here.url}/metrics").text
            assert page.count("\nheadlight_ready{") == replicas
            assert "\nheadlight_scrape_incomplete 0\n" in page
            assert seen[200] > before
    finally:
        stop.set()
        for client in clients:
            client.join()
    print(f"\n1 -> 2 -> 1: {dict(seen)}")
    assert set(seen) == {200} and len(data) == 1


def without(name: str) -> Change:
    """A configuration that lacks an application."""

    def change(configuration: dict[str, Any]) -> None:
        applications = configuration["applications"]
        configuration["applications"] = [each for each in applications if each["name"] != name]

    return change


def nowhere(url: str) -> bool:
    """Whether a path is unknown, in our words; Ray's proxy may answer until HAProxy's new list."""
    answer = httpx.get(url)
    problem = answer.headers["content-type"] == "application/problem+json"
    return problem and (answer.status_code, answer.json()["code"]) == (404, "not_found")


def an_application_that_a_file_lacks_is_removed(here: Cluster) -> None:
    """Without asking, and its path is nowhere."""
    here.deploy(TWO, without("base"))

    here.wait(lambda found: run(found, 1) and set(found) == {"minilm"})
    drill.wait(lambda: nowhere(f"{here.url}/base/ready"), "our 404")
    named = {"input": "a", "model": "transformer-base"}
    assert httpx.post(f"{here.url}/v1/embeddings", json=named).status_code == 404
    assert httpx.post(f"{here.url}/v1/encode", json=BODY).status_code == 200


def locked(here: Cluster) -> Change:
    """A configuration whose second model asks for a key."""
    file = here.directory / "keys"
    file.write_text("team-a:a-key-of-team-a-1234 metrics\n")

    def change(configuration: dict[str, Any]) -> None:
        configuration["applications"][1]["args"]["api_keys_file"] = str(file)

    return change


def two_models_answer(here: Cluster) -> None:
    """Chosen by `model` at one address; each with metrics, limits, keys and pages of its own."""
    keyed = {"authorization": "Bearer a-key-of-team-a-1234"}
    here.deploy(TWO, locked(here))
    here.wait(lambda found: run(found, 1) and set(found) == {"minilm", "base"})

    for path, status in {"/live": 200, "/ready": 200, "/health": 200, "/info": 401}.items():
        assert httpx.get(f"{here.url}/base{path}").status_code == status
    inference = f"{here.url}/v2/models/all-MiniLM-L6-v2/infer"
    binary = httpx.post(inference, content=BINARY, headers=ANNOUNCED)
    assert binary.status_code == 200, binary.text
    announced = ANNOUNCED | {"content-type": "application/octet-stream"}
    nested = httpx.post(f"{here.url}/v1/encode", content=b"[" * 2**20, headers=announced)
    assert nested.status_code in (400, 415)

    large = b'{"inputs": ["All is well"]' + b" " * 70_000 + b"}"
    kind = {"content-type": "application/json"}
    for prefix, width, code in (("", 384, 200), ("/base", 512, 413)):
        url = f"{here.url}{prefix}"
        answer = httpx.post(f"{url}/v1/encode", json={"inputs": ["All is well"]}, headers=keyed)
        assert len(answer.json()["data"][0]["pooled"]) == width
        assert httpx.get(f"{url}/ready").status_code == 200
        assert httpx.get(f"{url}/openapi.json", headers=keyed).json()["servers"] == [
            {"url": prefix or "/"}
        ]
        assert "openapi.json" in httpx.get(f"{url}/docs", headers=keyed).text
        page = httpx.get(f"{url}/metrics", headers=keyed).text
        assert 'route="/v1/encode"' in page
        sent = httpx.post(f"{url}/v1/encode", content=large, headers=kind | keyed)
        assert sent.status_code == code
    assert nowhere(f"{here.url}/else/v1/encode")
    names_choose(here, keyed)


def names_choose(here: Cluster, headers: dict[str, str]) -> None:
    """At the root, as a request names a model, also where HAProxy's buffer ends before the name."""
    url = f"{here.url}/v1/embeddings"
    codes = list[int]()
    late = b'{"input": "All is well", "user": "' + b"a" * 200_000 + b'", "model": "%s"}'
    for name, width in WIDTHS.items():
        early = httpx.post(url, json={"input": "All is well", "model": name}, headers=headers)
        beyond = httpx.post(url, content=late % name.encode(), headers=headers)
        assert early.status_code == 200, early.text
        assert early.json()["model"] == name
        assert len(early.json()["data"][0]["embedding"]) == width
        codes.append(beyond.status_code)
    # the root's replica sends it on to the second, which reads no body of this size
    assert codes == [200, 413]
    unknown = httpx.post(url, json={"input": "a", "model": "nope"}, headers=headers)
    assert unknown.status_code == 404
    assert all(name in unknown.text for name in WIDTHS)


def an_update_leaves_the_other_model_alone(here: Cluster) -> None:
    """One of one model alone: the other's replica is the same process, and loses no request."""
    stop, seen, data = threading.Event(), Counter[int | str](), set[str]()

    def replicas() -> dict[str, set[str]]:
        return {
            name: {each["replica_id"] for each in one["deployments"]["Encoder"]["replicas"]}
            for name, one in here.applications().items()
        }

    def opened(configuration: dict[str, Any]) -> None:
        configuration["applications"][1]["deployments"][0]["max_surge_percent"] = 0  # two cores

    before = replicas()
    client = threading.Thread(target=ask, args=(here.url, stop, seen, data), daemon=True)
    client.start()
    try:
        here.deploy(TWO, opened)
        here.wait(lambda found: run(found, 1) and replicas()["base"].isdisjoint(before["base"]))
        drill.wait(lambda: ready(f"{here.url}/base/info"), "the second model without keys")
    finally:
        stop.set()
        client.join()
    print(f"\nduring the other's update: {dict(seen)}")
    assert replicas()["minilm"] == before["minilm"]
    assert set(seen) == {200} and len(data) == 1
    answer = httpx.post(
        f"{here.url}/v1/embeddings", json={"input": "a", "model": "transformer-base"}
    )
    assert answer.json()["model"] == "transformer-base"


def refuses_what_cannot_differ(here: Cluster) -> None:
    """A model whose settings are not the cluster's is refused by name; the other serves on."""

    def longer(configuration: dict[str, Any]) -> None:
        configuration["applications"][1]["args"]["deadline_seconds"] = 60

    here.deploy(TWO, longer)

    assert here.status()["base"][0] == "DEPLOY_FAILED"
    assert "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S: is '45'; must be 75" in here.status()["base"][1]
    assert httpx.post(f"{here.url}/v1/encode", json=BODY).status_code == 200


def a_model_that_cannot_start_leaves_the_other_serving(here: Cluster) -> None:
    """Its files are right, and its replica finds that its vectors are all zero."""
    broken = save_embedder(here.directory)
    weights = broken / "model.safetensors"
    save_file({name: 0 * array for name, array in load_file(weights).items()}, weights)

    def wrong(configuration: dict[str, Any]) -> None:
        configuration["applications"][1]["args"]["model"] = str(broken)

    here.deploy(TWO, wrong)

    state, said = here.status()["base"]
    assert state == "DEPLOY_FAILED" and "untrained: the model's vectors" in said
    assert httpx.post(f"{here.url}/v1/encode", json=BODY).status_code == 200


def cut_off(here: Cluster, do: Callable[[], object]) -> "Counter[int | str]":
    """What four requests that are in flight come to when something is done."""
    seen = Counter[int | str]()

    def ask() -> None:
        try:
            answer = httpx.post(f"{here.url}/v1/encode", json=LONG, timeout=60)
            seen[answer.status_code] += 1
        except httpx.TransportError as error:
            seen[type(error).__name__] += 1

    def in_flight() -> bool:
        page = httpx.get(f"{here.url}/metrics").text
        return bool(re.search(r"^headlight_requests_in_flight\{.+\} 4\.0$", page, re.M))

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for client in clients:
        client.start()
    drill.wait(in_flight, "four requests in flight")
    do()
    for client in clients:
        client.join()
    return seen


@pytest.mark.prove
def test_an_empty_file_drains_where_a_shutdown_cuts_requests_off() -> None:
    """As docs/promises.md says."""
    with cluster(VARIABLES) as here:
        here.deploy(DEPLOY)
        drained = cut_off(here, lambda: here.deploy(DEPLOY, lambda file: file.update(NOTHING)))
        here.deploy(DEPLOY)
        shut = cut_off(here, lambda: here.serve("shutdown", "--yes"))

    print(f"\nan empty file: {dict(drained)}; serve shutdown: {dict(shut)}")
    assert drained == {200: 4}
    assert shut[200] < 4


@pytest.mark.prove
def test_a_cluster_without_ray_env_refuses_and_names_the_variables() -> None:
    """Without them a client could switch Ray's protections off, and a death would lose requests."""
    unset = "unset ${!RAY_SERVE_*}"
    with cluster(unset) as here:
        here.deploy(DEPLOY)
        status, said = here.status()["headlight"]

        missing = ingress.common_variables(Settings()).keys() - here.environment.keys()
        assert status == "DEPLOY_FAILED"
        assert said.startswith(
            f"{BUILD}node 127.0.0.1: it cannot serve: RAY_SERVE_HTTP_PROXY_CALLBACK"
        )
        assert missing and all(
            name in said for name in missing if name != "RAY_USAGE_STATS_ENABLED"
        )
