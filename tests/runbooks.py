"""The pages docs/runbooks: the commands for a shell and the queries for Prometheus in them."""

import os
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "docs" / "runbooks"
MARKED, OTHER = "the-marked-key-0123456789", "another-key-0123456789"
KEYS = f"team-a:{OTHER}\nprometheus:{MARKED} metrics\n"  # of the service that is asked
# What a command needs that is not here: a GPU, a line of the kernel's log, systemd, a container, a
# cluster
ELSEWHERE = re.compile(
    "nvidia-smi|dmesg |kubectl |journalctl |docker |serve status|grep -h '[^']+' /tmp/ray/"
)


def commands() -> set[str]:
    """Every command that a runbook gives and that can run here."""
    pages = (path.read_text() for path in sorted(FOLDER.glob("*.md")))
    lines = (line for page in pages for line in re.findall(r"^    ([a-z].*)$", page, re.MULTILINE))
    return {line for line in lines if not ELSEWHERE.match(line)}


def queries() -> set[str]:
    """Every query that a runbook gives."""
    pages = (path.read_text() for path in sorted(FOLDER.glob("*.md")))
    found = (part for page in pages for part in re.findall(r"```promql\n(.*?)```", page, re.DOTALL))
    return {line for part in found for line in part.splitlines()}


def run(line: str, port: int) -> str:
    """What a command says of the service on a port; where it looks for a fault, any line."""
    line = line.replace("localhost:8000", f"localhost:{port}")
    line = re.sub("grep -h '[^']+'", "grep -h started", line)
    shell, variables = ["bash", "-c", line], {**os.environ, "KEY": MARKED}
    done = subprocess.run(shell, capture_output=True, text=True, timeout=30, env=variables)
    assert not done.stderr, (line, done.stderr)
    return done.stdout
