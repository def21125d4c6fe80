"""What a release meets here instead of GitHub: a registry, and machines that know of it alone."""

import os
import resource
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.release.workflows import ROOT
from tests.test_tls import certificate

TOOLS = ROOT / ".rehearsal"  # where tests/release/tools.sh puts what Debian does not have
NEEDED = ("crun", "docker-registry", "htpasswd", "mmdebstrap", "podman", "skopeo", "unshare")
START_SECONDS = 20


def missing() -> list[str]:
    """Return the programs that a rehearsal needs and does not find."""
    there = [TOOLS / "helm", TOOLS / "lint" / "bin" / "zizmor", TOOLS / "node_modules"]
    lacking = [name for name in NEEDED if not shutil.which(name)]
    return lacking + [str(path) for path in there if not path.exists()]


@dataclass(frozen=True)
class Registry:
    """An empty registry on the loopback, with a certificate of its own and one user."""

    address: str  # host:port
    user: str
    token: str
    certificate: Path


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """Run Debian's docker-registry, whose images lie in a folder, until the block ends."""
    folder.mkdir()
    certificate(folder)
    token = secrets.token_hex(8)
    with (folder / "htpasswd").open("w") as file:
        subprocess.run(["htpasswd", "-Bbn", "releaser", token], stdout=file, check=True)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    (folder / "config.yml").write_text(f"""\
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/storage}}}}
http:
  addr: 127.0.0.1:{port}
  tls: {{certificate: {folder}/tls.crt, key: {folder}/tls.key}}
auth: {{htpasswd: {{realm: rehearsal, path: {folder}/htpasswd}}}}
""")
    with (folder / "log").open("w") as log:
        serving = subprocess.Popen(
            ["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log
        )
        try:
            _await_port(port, serving)
            yield Registry(f"127.0.0.1:{port}", "releaser", token, folder / "tls.crt")
        finally:
            serving.terminate()
            serving.wait()


def _await_port(port: int, serving: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_SECONDS
    while serving.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError("docker-registry did not start")


def surroundings(folder: Path, registry: Registry) -> dict[str, str]:
    """Return the variables of a new machine: a home, no images, and trust in the registry.

    podman has no right here to make control groups or networks, so a container shares this
    machine's; its images are plain folders, which a container in a container can have too.
    """
    home = folder / "home"
    home.mkdir(parents=True)
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    )
    files, processes = _limit(resource.RLIMIT_NOFILE), _limit(resource.RLIMIT_NPROC)
    (folder / "containers.conf").write_text(f"""\
[containers]
cgroups = "disabled"
netns = "host"
default_ulimits = ["nofile={files}", "nproc={processes}"]
[engine]
events_logger = "file"
cgroup_manager = "cgroupfs"
""")
    trusted = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    trust = trusted.read_text() + registry.certificate.read_text()
    (folder / "trusted.pem").write_text(trust)
    return {
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
        "HOME": str(home),
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "SSL_CERT_FILE": str(folder / "trusted.pem"),
    }


def _limit(which: int) -> str:
    """As much of a resource as this process may pass on, as podman writes it."""
    half = min(resource.getrlimit(which)[1] // 2, 32_768)  # to which podman itself goes down
    return f"{half}:{half}"


def shell(
    lines: str, folder: Path, variables: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a step's lines as GitHub's `shell: bash` does, and return what they say, in order.

    Over the control groups lies an empty folder: crun refuses to see two kinds of them.
    """
    script = folder.parent / "step.sh"
    script.write_text(lines)
    start = (
        f"mount -t tmpfs tmpfs /sys/fs/cgroup; exec bash --noprofile --norc -eo pipefail {script}"
    )
    return subprocess.run(
        ["unshare", "--mount", "sh", "-ec", start],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
