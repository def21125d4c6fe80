"""The command line, up to the point where Ray would start."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import handle_signals, main
from service.commands.options import COMMON
from service.tables.settings import Settings
from tests import quiet_ray  # noqa: F401

DEPLOY = Path(__file__).parent.parent.parent / "docs" / "deploy.md"


def serve(*arguments: str, **environ: str) -> Result:
    """Run `headlight serve` with arguments it refuses."""
    return CliRunner().invoke(main, ["serve", *arguments], env=environ)


def test_every_setting_is_an_option_with_its_sentence() -> None:
    """Of the same name; the sentence is the one in settings.py."""
    said = " ".join(serve("--help-all").output.split())

    for name, field in Settings.model_fields.items():
        if field.exclude:
            assert f"--{name.replace('_', '-')} " not in said
            continue
        assert f"--{name.replace('_', '-')} " in said
        assert str(field.description) in said
    others = (f"`{name}`" for name, field in Settings.model_fields.items() if field.exclude)
    assert f"but {' and '.join(others)} is a flag" in DEPLOY.read_text()


def test_the_help_fits_two_screens() -> None:
    """The settings that most services need, and where the others are."""
    said = serve("--help").output

    assert len(said.splitlines()) <= 50 and "--tls-cert" not in said
    for name in (*COMMON, "config", "help_all"):
        assert f"--{name.replace('_', '-')} " in said


def test_the_help_names_no_switch_that_only_keeps_off_what_is_off() -> None:
    """What is on by default may be turned off."""
    said = serve("--help-all").output

    assert "--no-access-log" in said
    assert "--log-to-stderr" in said and "--no-log-to-stderr" not in said


@pytest.mark.parametrize(
    ("arguments", "environ", "line"),
    [
        (("--port", "0"), {}, "--port must be at least 1, got 0"),
        (
            ("--dtype", "int8"),
            {},
            "--dtype must be 'auto', 'float32', 'bfloat16' or 'float16', got 'int8'",
        ),
        (
            (),
            {"HEADLIGHT_PROT": "1"},
            "HEADLIGHT_PROT: no such setting; did you mean HEADLIGHT_PORT?",
        ),
        (("--host", "192.0.2.77"), {}, "cannot listen on 192.0.2.77 port 8000"),
        (("--model", "nowhere"), {"HEADLIGHT_PORT": "18998"}, "no folder nowhere"),
    ],
    ids=["out of bounds", "unknown choice", "unknown variable", "not our address", "no model"],
)
def test_a_refusal_is_one_line_that_names_what_is_wrong(
    arguments: tuple[str, ...], environ: dict[str, str], line: str
) -> None:
    """On stderr, no stack."""
    result = serve(*arguments, **environ)

    assert result.exit_code in (1, 2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"headlight: {line}")
    assert result.stderr.count("\n") == 1


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    """And the file is read: its wrong setting is named when no flag replaces it."""
    file = tmp_path / "settings.yaml"
    file.write_text("port: 0\n")

    assert "port must be" in serve("--config", str(file)).stderr
    assert "no folder" in serve("--config", str(file), "--port", "18998", "--model", "x").stderr


def test_the_model_may_stand_by_itself() -> None:
    """`headlight serve MODEL`, as well as with --model; not twice."""
    port = {"HEADLIGHT_PORT": "18998"}
    named, placed = serve("--model", "nowhere", **port), serve("nowhere", **port)

    assert named.stderr == placed.stderr and "no folder nowhere" in placed.stderr
    twice = serve("here", "--model", "nowhere")
    assert (twice.exit_code, twice.stderr) == (
        2,
        "headlight: the model is given twice: here and --model nowhere\n",
    )


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_what_a_command_opens_takes_the_place_of_no_closed_stream(closed: str) -> None:
    """A supervisor may start it with some closed; it opens them before all else."""
    code = (
        "import os, sys; from service.cli import open_standard_streams; open_standard_streams();"
        " print('lost', file=sys.stderr); print('lost'); sys.exit(open(os.devnull).fileno() < 3)"
    )
    done = subprocess.run(["bash", "-c", f'exec {sys.executable} -c "{code}" {closed}'])

    assert done.returncode == 0


def test_help_does_not_load_ray_or_torch() -> None:
    """It must come at once."""
    code = "import sys, service.cli; print({'ray', 'torch'} & sys.modules.keys())"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout == "set()\n"


@pytest.mark.parametrize("ignored", [False, True], ids=["in a terminal", "by nohup"])
def test_a_hangup_ends_a_command_unless_nohup_has_it_ignored(ignored: bool) -> None:
    """The service outlives the terminal it was started in, and still stops when it is told to."""
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    heard = list[int]()
    try:
        with handle_signals(lambda number, _: heard.append(number)):
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, earlier)

    assert heard == [*[signal.SIGHUP][ignored:], signal.SIGTERM]
