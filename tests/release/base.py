"""What a build asks for: the base image, made of Debian's packages, and an index of torch."""

import functools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.release.machine import TOOLS, Registry, shell, surroundings
from tests.release.workflows import ROOT

BASE = re.compile(r"^ARG BASE=(\S+?)@sha256:[0-9a-f]{64}$", re.MULTILINE)
PACKAGES = "ca-certificates,python3,python3-venv,python-is-python3"
TRUSTED = "/etc/ssl/certs/ca-certificates.crt"  # of this machine, which may have a proxy's


def push_base(folder: Path, registry: Registry) -> str:
    """Make the base image by mmdebstrap and push it; return its name in full, with its digest."""
    folder.mkdir()
    found = BASE.search((ROOT / "Dockerfile").read_text())
    assert found
    name = f"{registry.address}/{found[1]}"
    variables = surroundings(folder / "machine", registry)
    tar = TOOLS / "base.tar"  # kept: Debian's packages take minutes
    lines = f"""
        [ -e {tar} ] || mmdebstrap --quiet --variant=minbase --include={PACKAGES} \\
            --customize-hook='cp {TRUSTED} "$1{TRUSTED}"' bookworm {tar}
        podman import --quiet {tar} {name}
        podman login {registry.address} --username {registry.user} --password {registry.token}
        podman push --quiet --digestfile digest {name}
    """
    done = shell(lines, folder, variables)
    assert done.returncode == 0, done.stdout
    return f"{name}@{(folder / 'digest').read_text()}"


@contextmanager
def torch_index(folder: Path) -> Iterator[str]:
    """Serve, on the loopback, the torch that pip finds here, as an index that pip can ask."""
    pinned = re.search(
        r"^torch==[\d.]+", (ROOT / "deploy" / "torch.lock").read_text(), re.MULTILINE
    )
    assert pinned
    download = [
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder / "torch"),
        pinned[0],
    ]
    subprocess.run([sys.executable, "-m", *download], check=True)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
