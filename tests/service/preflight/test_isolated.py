"""What only torch can tell is told by a process that ends, in the same line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from service.cluster.start_report import StartFailed
from service.preflight import isolated
from service.tables.settings import Settings

SERVE = """
import sys
from service.cli import main
try:
    main(["serve", "--port", sys.argv[1], "--max-tokens", "513"])
finally:
    print("torch" in sys.modules)
"""


def test_the_command_refuses_a_model_and_never_holds_torch(tmp_path: Path, free: int) -> None:
    """Nor does it look for our modules where it was started."""
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("raise RuntimeError")

    command = [sys.executable, "-P", "-c", SERVE, str(free)]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    line = "headlight: max_tokens 513 exceeds the model's 512 positions\n"
    assert (told.returncode, told.stderr, told.stdout) == (1, line, "False\n")


def test_a_check_that_dies_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor that lacks an instruction of torch's."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with (
        pytest.raises(StartFailed, match="^the check of the model ended with 1$"),
        isolated.checking({"": Settings()}, print) as servable,
    ):
        servable()


def test_what_would_be_slower_is_said_before_the_start() -> None:
    """In a line of its own, and the start goes on."""
    said = list[str]()

    with isolated.checking({"": Settings(dtype="float16", device="cpu")}, said.append) as servable:
        servable()

    (line,) = said
    assert re.fullmatch(
        r"float16: 0\.\d+ times as fast as float32 here, a layer of all-MiniLM-L6-v2", line
    )
