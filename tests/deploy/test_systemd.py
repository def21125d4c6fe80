"""The unit of deploy/systemd, as systemd itself reads it."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.cluster import ingress
from service.tables.settings import Settings

UNIT = Path(__file__).parent.parent.parent / "deploy" / "systemd" / "headlight.service"
EXPOSED = 20  # of 100: the most that systemd-analyze may count; it counts 17


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with the command that is installed here."""
    command = Path(sys.executable).with_name("headlight")
    placed = tmp_path / UNIT.name
    placed.write_text(UNIT.read_text().replace("/opt/headlight/bin/headlight", str(command)))
    return placed


def analyze(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """What systemd-analyze says of a unit that nothing runs."""
    found = shutil.which("systemd-analyze")
    if not found:
        pytest.skip("no systemd-analyze (Debian: apt-get install systemd)")
    words = [found, *map(str, arguments)]
    environment = {**os.environ, "SYSTEMD_LOG_COLOR": "0"}
    return subprocess.run(words, capture_output=True, text=True, env=environment)


def test_systemd_knows_every_line_of_the_unit(unit: Path) -> None:
    """One that it does not know it would ignore, with a line in the journal."""
    done = analyze("verify", "--man=no", unit)

    told = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, told) == (0, [])


def test_the_unit_gives_the_service_few_rights(unit: Path) -> None:
    """By systemd's own count, of what it may reach and call."""
    done = analyze("security", "--offline=true", f"--threshold={EXPOSED}", "--no-pager", unit)

    assert done.returncode == 0, done.stdout


def test_the_unit_stops_a_service_as_it_wants_to_be_stopped() -> None:
    """The command alone is told, and has longer than a request may take."""
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment]
    parsed.read_string(UNIT.read_text())
    service = parsed["Service"]

    assert service["KillMode"] == "mixed" and service["OOMPolicy"] == "continue"
    assert float(service["TimeoutStopSec"]) > ingress.shutdown_seconds(Settings()) + 30
    assert service["RestartPreventExitStatus"] == "2"
    assert re.fullmatch(r"/opt/headlight/bin/headlight serve .*", service["ExecStart"])
