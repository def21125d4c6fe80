"""`headlight deploy` where no cluster is, or not the right one: a line, and nothing is sent."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from service.cli import main
from service.deployment import dashboard
from service.preflight import schema
from tests.manifests import manifests
from tests.service.deployment.clusters import OPTIONS, Cluster, application, dashboard_of

DEPLOY = Path(__file__).parent.parent.parent.parent / "deploy"
LAPTOP = str(DEPLOY / "serve" / "laptop.yaml")


def deploy(
    file: str, address: str = "http://127.0.0.1:9", *flags: str, wait: str = "0.1"
) -> Result:
    """Run `headlight deploy`."""
    command = ["deploy", file, "--address", address, "--wait", wait, *flags]
    return CliRunner().invoke(main, command)


@contextmanager
def answering(status: int, body: bytes = b"") -> Iterator[str]:
    """A server that answers everything so; gives its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"applications":null}'])
def test_an_answer_of_another_form_is_no_dashboards(body: bytes) -> None:
    """Not a traceback, and not a cluster that serves nothing."""
    with answering(200, body) as address:
        result = CliRunner().invoke(main, ["status", "--address", address])

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"headlight: {address} answers, but it is no Ray dashboard\n"


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

    assert result.exit_code == 2 and said in result.stderr
    assert result.stderr.startswith("headlight: ") and result.stderr.count("\n") == 1


def test_no_cluster_is_one_line() -> None:
    """It says how to start one."""
    result = deploy(LAPTOP)

    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "no Ray dashboard at http://127.0.0.1:9" in result.stderr
    assert "`ray start --head`" in result.stderr


def test_a_file_for_kubernetes_goes_by_its_own_way(tmp_path: Path) -> None:
    """KubeRay's operator deploys what is in it."""
    file = tmp_path / "rayservice.yaml"
    file.write_text(manifests()["rayservice.yaml"])

    result = deploy(str(file))

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

    assert result.exit_code == 2 and "does not hold a token in one word" in result.stderr
    assert "secret" not in result.output


NOT_BUILT = {
    "status": "DEPLOY_FAILED",
    "message": "Deploying app failed:\nservice.cluster.progress.StartFailed: no folder /nowhere",
    "deployments": {},
}


WHOLE = schema.plain(yaml.safe_load(Path(LAPTOP).read_text()))
# Ray says the file's logging_config of each application
FILE = WHOLE["applications"][0] | {"logging_config": WHOLE["logging_config"]}
SERVED = {"headlight": application("RUNNING", "a", file=FILE)}


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
    ],
    ids=["runs", "not built", "first not built", "late"],
)
def test_what_became_of_a_file_is_one_line(cluster: Cluster, status: int, said: str) -> None:
    """With its exit status; what was sent is the file as Ray reads it."""
    with dashboard_of(cluster) as address:
        result = deploy(LAPTOP, address)

    assert result.exit_code == status
    assert (result.stderr if status else result.stdout).splitlines()[-1] == said
    assert len(cluster.sent) == 1 and cluster.sent[0]["http_options"] == OPTIONS


def test_an_application_is_removed_only_when_told_to() -> None:
    """One that the file does not name is refused by name, before anything is sent."""
    old = {"old": application("RUNNING", "b", file={**FILE, "name": "old"}, route_prefix="/old")}
    cluster = Cluster({**SERVED, **old}, [{**SERVED, "old": {**old["old"], "status": "DELETING"}}])

    with dashboard_of(cluster) as address:
        kept = deploy(LAPTOP, address)
        assert not cluster.sent
        gone = deploy(LAPTOP, address, "--prune")

    assert (kept.exit_code, kept.stdout) == (2, "")
    assert kept.stderr.splitlines() == [
        "removes old at /old, which the file does not name",
        "leaves headlight as it is",
        "headlight: the file does not name old, so Ray would remove it; add it to the file, or "
        "remove it with --prune",
    ]
    assert gone.exit_code == 0 and len(cluster.sent) == 1
    assert "runs as headlight; old is removed, ready after" in gone.stdout


def test_what_a_program_deployed_is_not_removed() -> None:
    """Ray leaves it where it is, whatever a file names."""
    mine = {"mine": application("RUNNING", "b", source="imperative", route_prefix="/mine")}
    cluster = Cluster(mine, [{**SERVED, **mine}])

    with dashboard_of(cluster) as address:
        result = deploy(LAPTOP, address)

    assert (result.exit_code, result.stderr) == (0, "adds headlight at /\n")
    assert "mine" not in result.stdout


def test_a_dry_run_says_what_would_change_and_sends_nothing(tmp_path: Path) -> None:
    """A line for each application; with the exit status of the command without it."""
    file = tmp_path / "laptop.yaml"
    file.write_text(Path(LAPTOP).read_text().replace("num_replicas: 1", "num_replicas: 2"))
    cluster = Cluster(SERVED)

    with dashboard_of(cluster) as address:
        result = deploy(str(file), address, "--dry-run")
        other = file.write_text(file.read_text().replace("name: headlight", "name: new"))
        refused = deploy(str(file), address, "--dry-run")

    assert other and (result.exit_code, refused.exit_code, cluster.sent) == (0, 2, [])
    assert result.stderr == "" and result.stdout.splitlines() == [
        "changes headlight: deployments[0].num_replicas 1 -> 2",
        "headlight: nothing was sent",
    ]
    assert refused.stdout.splitlines() == [
        "adds new at /",
        "removes headlight at /, which the file does not name",
    ]


@pytest.mark.parametrize(
    ("cluster", "flags", "code", "said"),
    [
        (Cluster({}, [SERVED]), [], 0, ("runs", "1 replica of all-MiniLM-L6-v2 runs as headlight")),
        (Cluster({}), ["--dry-run"], 0, ("planned", "nothing was sent")),
        (
            Cluster({"old": application("RUNNING")}),
            [],
            2,
            ("refused", "the file does not name old"),
        ),
        (Cluster({}, broken=True), [], 1, ("failed", "no Ray dashboard at")),
    ],
    ids=["runs", "planned", "refused", "failed"],
)
def test_json_is_one_object_and_nothing_else(
    cluster: Cluster, flags: list[str], code: int, said: tuple[str, str]
) -> None:
    """The outcome in a word and in its line, and the plan."""
    with dashboard_of(cluster) as address:
        result = deploy(LAPTOP, address, "--json", *flags)

    found = json.loads(result.stdout)
    assert (result.exit_code, found["status"]) == (code, said[0])
    assert found["said"][0].startswith(said[1])
    assert found["plan"]["added"] == {"headlight": "/"}
    assert set(found["plan"]) == {"added", "changed", "removed", "left"}


def test_what_breaks_off_may_have_been_taken() -> None:
    """So the exit status is not that of what was not sent."""
    with dashboard_of(Cluster({}, broken=True)) as address:
        result = deploy(LAPTOP, address)

    assert result.exit_code == 1
    assert result.stderr.endswith("; the cluster may have taken the file\n")


@pytest.mark.parametrize(
    ("cluster", "change", "said"),
    [
        (
            Cluster(SERVED),
            ("port: 8000", "port: 8001"),
            "9: http_options.port: 8001 cannot replace 8000 in place; run `RAY_AUTH_MODE=token "
            "serve shutdown`, then deploy again",
        ),
        (
            Cluster(SERVED),
            ("proxy_location: EveryNode", "proxy_location: HeadOnly"),
            "6: proxy_location: HeadOnly cannot replace EveryNode in place; run `RAY_AUTH",
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
        (
            Cluster({"mine": application("RUNNING", "b", source="imperative")}),
            ("threads: 1", "threads: 1"),
            "17: applications[0].route_prefix: / leads to mine, which a program deployed; write",
        ),
    ],
    ids=["port", "proxies", "processors", "together", "custom", "loopback", "prefix"],
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
    """A deployment sends none; the replicas follow theirs by themselves."""
    file = tmp_path / "laptop.yaml"
    keyed = "    args:\n      api_keys_file: /etc/headlight/keys\n"
    file.write_text(Path(LAPTOP).read_text().replace("    args:\n", keyed))

    with dashboard_of(Cluster(SERVED, [SERVED])) as address:
        result = deploy(str(file), address)

    assert result.exit_code == 0
    assert result.stdout == (
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
