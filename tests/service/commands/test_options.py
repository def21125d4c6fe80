"""What several commands share: the key file, completion."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from service.cli import main
from service.commands.options import SECTION_TITLES, SectionedCommand, add_setting_options, read_key
from service.tables.settings import Settings

KEY, OTHER = "canary-Key_123456789", "another-key-123456"


@pytest.mark.parametrize(
    "text",
    [f"{KEY}\n", f"team-a:{KEY}\n", f"team-a:{KEY} requests=64 tokens=20000\nteam-b:{OTHER}\n"]
    + [f"team-a:sha256:{'0' * 64}\nteam-b:{KEY}", f"\n\n  {KEY}  \n"]
    + [f"team-a:{KEY} requests=64 models=minilm,reranker\n"],
    ids=["bare", "named", "limited, the first of two", "after a digest", "among blanks", "models"],
)
def test_the_services_own_key_file_is_one_for_its_clients(tmp_path: Path, text: str) -> None:
    """The first key that a client can send; its name and limits are the service's business."""
    file = tmp_path / "keys"
    file.write_text(text)

    assert read_key(file) == KEY


@pytest.mark.parametrize("command", [["space"], ["encode", "text"]], ids=["space", "encode"])
@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff\xfe\x00", "is not UTF-8 text: a key file holds `key` or `name:key`"),
        (b"\n", "there is no key"),
        (
            f"a:sha256:{'0' * 64}".encode(),
            "holds only SHA-256 digests; a client must send the key itself",
        ),
        (b"secret phrase", "line 1 holds more than `key` or `name:key`"),
    ],
    ids=["not text", "empty", "digests", "words"],
)
def test_a_key_file_that_holds_none_is_refused_in_one_line(
    tmp_path: Path, command: list[str], content: bytes, line: str
) -> None:
    """Which names the file, and never repeats what it holds."""
    file = tmp_path / "keys"
    file.write_bytes(content)

    result = CliRunner().invoke(main, [*command, "--key-file", str(file)])

    assert result.exit_code == 2
    assert re.fullmatch(f"headlight: {file}:? {re.escape(line)}\n", result.stderr)


def test_the_version_is_the_packages() -> None:
    """And nothing is loaded for it."""
    said = CliRunner().invoke(main, ["--version"])

    assert (said.exit_code, said.output) == (0, "headlight 0.1.0\n")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("headlight se", {"serve"}),
        ("headlight serve --log-f", {"--log-format"}),
        ("headlight serve --log-format ", {"json", "text"}),
        ("headlight serve --device cu", {"cuda"}),
        ("headlight serve --no-acc", {"--no-access-log"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, offered: set[str]) -> None:
    """As the docs set it up for bash; zsh and fish ask the same code."""
    typed = words.split(" ")
    environment = {"COMP_WORDS": words, "COMP_CWORD": str(len(typed) - 1)}

    said = CliRunner().invoke(
        main, prog_name="headlight", env={**environment, "_HEADLIGHT_COMPLETE": "bash_complete"}
    )

    assert {line.partition(",")[2] for line in said.output.splitlines()} == offered


@click.command(cls=SectionedCommand)
@add_setting_options
def given(**flags: str | bool | None) -> None:
    """Print what was given."""
    print({name: value for name, value in flags.items() if value is not None})


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        (["--access-log"], {"access_log": True}),
        (["--no-access-log"], {"access_log": False}),
        (["--access-log", "false"], {"access_log": False}),
        (["--access-log", "true", "--port", "1"], {"access_log": True, "port": "1"}),
        (["--log-to-stderr=True"], {"log_to_stderr": True}),
        (["--log-to-stderr=0"], {"log_to_stderr": False}),
        (
            ["--log-to-stderr", "my/model"],
            {"log_to_stderr": True, "model_arguments": ("my/model",)},
        ),
        (["a/model", "its/b"], {"model_arguments": ("a/model", "its/b")}),
        (["--access-log", "--public-metrics"], {"access_log": True, "public_metrics": True}),
    ],
    ids=" ".join,
)
def test_a_switch_is_one_and_takes_its_old_value_too(
    arguments: list[str], read: dict[str, object]
) -> None:
    """What follows a switch and is no such value is the model."""
    result = CliRunner().invoke(given, arguments)

    assert (result.exit_code, result.output) == (0, f"{read}\n")


def test_a_switch_with_another_value_is_refused() -> None:
    """Nothing is guessed."""
    result = CliRunner().invoke(given, ["--access-log=maybe"])

    assert result.exit_code == 2 and "does not take a value" in result.stderr


def test_help_has_a_section_for_each_subject() -> None:
    """In the order of the settings; every setting that opens one is there."""
    said = CliRunner().invoke(given, ["--help-all"]).output

    heads = re.findall(r"^([A-Z].*):$", said, re.MULTILINE)
    assert heads == [*SECTION_TITLES.values(), "This command"]
    assert SECTION_TITLES.keys() <= Settings.model_fields.keys()


@pytest.mark.parametrize("command", ["serve", "doctor", "encode", "heads", "space", "convert"])
def test_help_speaks_to_people(command: str) -> None:
    """No name of a type of Python's, no switch that asks for a value, no empty default."""
    said = CliRunner().invoke(main, [*command.split(), "--help"]).output

    assert not re.findall(r"ANNOTATED|BOOL|\bSTR\b|\bTUPLE\b|default: (\(\)|False|None)", said)


def test_an_option_says_what_it_takes() -> None:
    """A number, a file, several texts, or the words there are; also where it has a bound."""
    said = " ".join(CliRunner().invoke(given, ["--help-all"]).output.split())

    for words in (
        "--max-tokens N",
        "--api-keys-file FILE",
        "--cors-origins TEXT,...",
        "--tracing-ratio NUMBER",
        "--device auto|cpu|cuda",
        "--tracing TEXT",
    ):
        assert f"{words} " in said


def test_commands_stand_in_sections() -> None:
    """Each once, with its whole first sentence."""
    said = CliRunner().invoke(main, ["--help"]).output

    listed = re.findall(r"^  ([a-z]+) ", said, re.MULTILINE)
    assert listed == ["serve", "doctor", "encode", "heads", "space", "convert"]
    assert sorted(listed) == sorted(main.commands) and said.count("\n") <= 24  # a screen
    assert not re.search(r"[a-z]\.\.\.", said)
