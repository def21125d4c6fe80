"""The commands of the runbooks, run as they stand on a service that runs."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ray.conftest import Service

pytestmark = [pytest.mark.ray, pytest.mark.prove]

RUNBOOKS = Path(__file__).parent.parent.parent / "docs" / "runbooks"
COMMAND = re.compile(r"^    ([a-z].*)$", re.MULTILINE)
# What they need that is not here: a GPU, such a line of the kernel's log, a cluster, keys
ELSEWHERE = re.compile(
    "nvidia-smi|dmesg |kubectl |serve status|.*keys_stale|grep -h '[^']+' /tmp/ray/"
)


def test_every_command_of_a_runbook_finds_what_it_is_to_find(running: "Service") -> None:
    """Each metric that it asks for by name, too; where it asks for a fault's line, any line."""
    if not shutil.which("wget"):
        pytest.skip("no wget, which the image has (Debian: apt-get install wget)")
    lines = [line for page in RUNBOOKS.glob("*.md") for line in COMMAND.findall(page.read_text())]
    commands = {line for line in lines if not ELSEWHERE.match(line)}
    said = {line: run(line, running) for line in commands}

    assert len(commands) > 10
    for line, text in said.items():
        assert text, line
        if names := re.search(r"grep -E '\^headlight_\((.+)\)'", line):
            missing = {name for name in names[1].split("|") if f"headlight_{name}" not in text}
            assert missing <= {"gpu_memory_bytes"}, line


def run(line: str, service: "Service") -> str:
    """What a command says; the fault that it looks for is not there, another line is."""
    line = line.replace("localhost:8000", f"localhost:{service.port}")
    line = re.sub("grep -h '[^']+'", "grep -h started", line)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30)
    assert not done.stderr, (line, done.stderr)
    return done.stdout
