"""`headlight deploy` where no cluster is, or not the right one: a line, and nothing is sent."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from service.deployment import dashboard

DEPLOY = Path(__file__).parent.parent.parent.parent / "deploy"
LAPTOP = str(DEPLOY / "serve" / "laptop.yaml")


def deploy(file: str, address: str = "http://127.0.0.1:9", wait: str = "0.1") -> Result:
    """Run `headlight deploy`."""
    return CliRunner().invoke(main, ["deploy", file, "--address", address, "--wait", wait])


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A server that answers everything so; gives its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "wants its token; copy ~/.ray/auth_token from its head node, or set RAY_AUTH_TOKEN"),
        (403, "wants its token; "),
        (404, "answers, but it is no Ray dashboard"),
        (200, "answers, but it is no Ray dashboard"),
        (503, "answers 503"),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_one_line(status: int, said: str) -> None:
    """With what to do."""
    with answering(status) as address:
        result = deploy(LAPTOP, address)

    assert result.exit_code == 1 and said in result.stderr
    assert result.stderr.startswith("headlight: ") and result.stderr.count("\n") == 1


def test_no_cluster_is_one_line() -> None:
    """It says how to start one."""
    result = deploy(LAPTOP)

    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "no Ray dashboard at http://127.0.0.1:9" in result.stderr
    assert "`ray start --head`" in result.stderr


def test_a_file_for_kubernetes_goes_by_its_own_way() -> None:
    """KubeRay's operator deploys what is in it."""
    file = str(DEPLOY / "kuberay" / "rayservice.yaml")

    result = deploy(file)

    assert result.exit_code == 2
    assert result.stderr == f"{file} is for Kubernetes: kubectl apply --filename {file}\n"


def test_a_wrong_file_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    """As `headlight config check` would say it."""
    file = tmp_path / "laptop.yaml"
    file.write_text(Path(LAPTOP).read_text().replace("num_replicas", "num_replica"))

    result = deploy(str(file))

    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith(f"{file}:26: applications[0].deployments[0].num_replica: ")
    assert result.stderr.count("\n") == 1


def test_the_token_is_where_ray_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable, a file that one names, the file in the home; or none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dashboard.token({}) is None
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("home\n")
    other = tmp_path / "other"
    other.write_text("other\n")

    assert dashboard.token({}) == "home"
    assert dashboard.token({"RAY_AUTH_TOKEN_PATH": str(other)}) == "other"
    assert dashboard.token({"RAY_AUTH_TOKEN_PATH": str(other), "RAY_AUTH_TOKEN": "told"}) == "told"


def test_what_is_no_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header could not carry it, and its library would say what it was."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "two secret\nwords")

    result = deploy(LAPTOP)

    assert result.exit_code == 1 and "does not hold a token in one word" in result.stderr
    assert "secret" not in result.output


OPTIONS = {"host": "127.0.0.1", "port": 8000, "request_timeout_s": 35.0}
NOT_BUILT = {
    "status": "DEPLOY_FAILED",
    "message": "Deploying app 'headlight' failed:\nservice.probe.Unfit: no folder /nowhere",
    "deployments": {},
}


def application(status: str, *replicas: str) -> dict[str, Any]:
    """An application as Ray's dashboard has it."""
    listed = [{"replica_id": name, "state": "RUNNING"} for name in replicas]
    deployment = {"status": "UPDATING", "message": "", "replicas": listed}
    return {"status": status, "message": "", "deployments": {"Encoder": deployment}}


class Cluster:
    """A cluster as its dashboard tells of it, in the words of Ray 2.60.

    Args:
        before: its applications until something is sent.
        after: what they are then, one answer after the other; the last stays.
        nodes: resources and labels of each.
        replicas: ids of those that live all the time.
    """

    def __init__(
        self,
        before: dict[str, Any],
        after: Sequence[dict[str, Any]] = (),
        nodes: Sequence[tuple[dict[str, float], dict[str, str]]] = (({"CPU": 2.0}, {}),),
        replicas: Sequence[str] = (),
    ) -> None:
        self.now, self.after, self.sent = before, list(after), list[Any]()
        self.nodes = [
            {"state": "ALIVE", "resources_total": resources, "labels": labels}
            for resources, labels in nodes
        ]
        self.actors = [{"name": f"SERVE_REPLICA::headlight#Encoder#{name}"} for name in replicas]

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        if path.startswith("/api/serve"):
            if self.sent and self.after:
                self.now = self.after.pop(0)
            http = {"http_options": OPTIONS, "proxy_location": "EveryNode"} if self.now else {}
            return {"applications": self.now, **http}
        listed = self.nodes if path.startswith("/api/v0/nodes") else self.actors
        return {"data": {"result": {"result": listed}}}

    def put(self, body: bytes) -> None:
        """What is sent stays."""
        self.sent.append(json.loads(body))


@contextmanager
def dashboard_of(cluster: Cluster) -> Iterator[str]:
    """The dashboard of a cluster; gives its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(json.dumps(cluster.get(self.path)).encode())

        def do_PUT(self) -> None:
            cluster.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(b"")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


SERVED = {"headlight": application("RUNNING", "a")}


@pytest.mark.parametrize(
    ("cluster", "status", "said"),
    [
        (
            Cluster({}, [{"headlight": application("RUNNING", "a")}]),
            0,
            "headlight: 1 replica of all-MiniLM-L6-v2 runs as headlight, ready after 0 s",
        ),
        (
            Cluster(SERVED, [{"headlight": NOT_BUILT}], replicas=["a"]),
            1,
            "headlight: headlight not changed: no folder /nowhere; the version before still serves",
        ),
        (
            Cluster(SERVED, [{"headlight": NOT_BUILT}]),
            1,
            "headlight: headlight not changed: no folder /nowhere; nothing served before",
        ),
        (
            Cluster(SERVED, [{"headlight": application("DEPLOYING", "a")}], replicas=["a"]),
            1,
            "headlight: headlight not changed yet: deploying; the version before still serves; "
            "the cluster goes on with it",
        ),
        (
            Cluster({"old": application("RUNNING", "b")}, [SERVED]),
            0,
            "headlight: 1 replica of all-MiniLM-L6-v2 runs as headlight; old is deleted, which the "
            "file does not name, ready after 0 s",
        ),
    ],
    ids=["runs", "not built", "first not built", "late", "another goes"],
)
def test_what_became_of_a_file_is_one_line(cluster: Cluster, status: int, said: str) -> None:
    """With its exit status; what was sent is the file as Ray reads it."""
    with dashboard_of(cluster) as address:
        result = deploy(LAPTOP, address)

    assert (result.exit_code, result.output) == (status, f"{said}\n")
    assert len(cluster.sent) == 1 and cluster.sent[0]["http_options"] == OPTIONS


@pytest.mark.parametrize(
    ("cluster", "change", "said"),
    [
        (
            Cluster(SERVED),
            ("port: 8000", "port: 8001"),
            "9: http_options.port: 8001 cannot replace 8000 in place: `RAY_AUTH_MODE=token serve "
            "shutdown`, then deploy again",
        ),
        (
            Cluster(SERVED),
            ("proxy_location: EveryNode", "proxy_location: HeadOnly"),
            "6: proxy_location: HeadOnly cannot replace EveryNode in place: `RAY_AUTH",
        ),
        (
            Cluster({}),
            ("num_cpus: 1", "num_cpus: 3"),
            "27: applications[0].deployments[0].ray_actor_options: a replica takes CPU 3; no node "
            "has more than CPU 2",
        ),
        (
            Cluster({}),
            ("num_replicas: 1", "num_replicas: 3"),
            "27: applications[0].deployments[0].ray_actor_options: 3 replicas of CPU 1 each; the "
            "nodes have room for 2",
        ),
        (
            Cluster({}),
            ("num_cpus: 1", "num_cpus: 1\n          resources: {accelerator: 1}"),
            "27: applications[0].deployments[0].ray_actor_options: a replica takes CPU 1 and "
            "accelerator 1; no node has more than accelerator 0",
        ),
        (
            Cluster({}, nodes=[({"CPU": 2.0}, {})] * 3),
            ("threads: 1", "threads: 1"),
            "8: http_options.host: 127.0.0.1 is reached from its own node alone, and there are 3",
        ),
    ],
    ids=["port", "proxies", "processors", "together", "custom", "loopback"],
)
def test_what_a_cluster_cannot_do_is_not_sent(
    cluster: Cluster, change: tuple[str, str], said: str, tmp_path: Path
) -> None:
    """One line, and exit status 2."""
    file = tmp_path / "laptop.yaml"
    file.write_text(Path(LAPTOP).read_text().replace(*change))

    with dashboard_of(cluster) as address:
        result = deploy(str(file), address)

    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert result.output.startswith(f"{file}:{said}") and not cluster.sent


def test_what_becomes_of_changed_keys_is_said(tmp_path: Path) -> None:
    """A deployment of the same file changes none; the replicas follow theirs by themselves."""
    file = tmp_path / "laptop.yaml"
    keyed = "    args:\n      api_keys_file: /etc/headlight/keys\n"
    file.write_text(Path(LAPTOP).read_text().replace("    args:\n", keyed))

    with dashboard_of(Cluster(SERVED, [SERVED])) as address:
        result = deploy(str(file), address)

    assert result.exit_code == 0
    assert result.output == (
        "headlight: 1 replica of all-MiniLM-L6-v2 runs as headlight (within 30 s of a change, each "
        "takes up the keys in /etc/headlight/keys by itself), ready after 0 s\n"
    )


def test_a_cluster_that_grows_is_not_counted(tmp_path: Path) -> None:
    """A node of an operator or a launcher says its group; more may come."""
    file = tmp_path / "laptop.yaml"
    file.write_text(Path(LAPTOP).read_text().replace("num_cpus: 1", "num_cpus: 3"))
    cluster = Cluster({}, [SERVED], nodes=[({"CPU": 2.0}, {"ray.io/node-group": "workers"})])

    with dashboard_of(cluster) as address:
        result = deploy(str(file), address)

    assert result.exit_code == 0 and cluster.sent
