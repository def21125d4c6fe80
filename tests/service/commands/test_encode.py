"""What headlight encode TEXT makes of an answer: a table and a map."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from service.cli import main
from service.commands import encode
from service.commands.bulk import jobs
from service.commands.terminal import Failed, Unusable
from service.pipeline.replica import Replica
from tests.replica_internals import under


@pytest.mark.parametrize(("name", "found"), [("L5H11", (5, 11)), ("l0h3", (0, 3))])
def test_a_head_is_named_by_layer_and_number(name: str, found: tuple[int, int]) -> None:
    """As the papers write it."""
    assert encode.parse_head(name, "--head") == found


@pytest.mark.parametrize("name", ["5.11", "L5", "H11L5", "L-1H2", ""])
def test_anything_else_names_no_head(name: str) -> None:
    """And the refusal shows how it is done."""
    with pytest.raises(Unusable, match="L5H11"):
        encode.parse_head(name, "--head")


def test_a_service_that_is_not_there_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a stack of exceptions."""
    monkeypatch.setattr(jobs, "INFO_SECONDS", 0.5)

    with pytest.raises(Failed, match="no answer from http://127.0.0.1:9"):
        encode.show_example("http://127.0.0.1:9")


async def test_the_example_is_a_command_and_its_real_answer(address: str, client: Any) -> None:
    """Long vectors are cut to three numbers, all numbers to four places."""
    shown = await asyncio.to_thread(encode.show_example, address)

    command, answer = shown.rsplit("\n", 1)
    told = json.loads(answer)["data"][0]
    real = (await client.post("/v1/encode", json=encode.EXAMPLE_BODY)).json()["data"][0]
    assert (
        command.startswith(f"curl {address}/v1/encode")
        and json.dumps(encode.EXAMPLE_BODY) in command
    )
    assert told["pooled"] == [round(x, 4) for x in real["pooled"][:3]] + ["..."]
    assert told["tokens"] == real["tokens"]


async def test_a_refusal_says_what_the_service_says(address: str) -> None:
    """Also how many layers and heads there are."""
    with pytest.raises(Failed, match="422 .*: .* is not a layer of this model: layers are 0 to 5"):
        await asyncio.to_thread(encode.draw_tokens, address, None, "All is well", "L9H99", None)


async def test_a_long_text_is_refused_even_by_a_service_that_cuts(
    replica: Replica, listen: Any, outer: Any
) -> None:
    """A table would not say that a part is missing."""
    async with listen(outer(under(replica, truncate="right"))) as url:
        with pytest.raises(Failed, match="it has 302 tokens"):
            await asyncio.to_thread(encode.draw_tokens, url, None, "well " * 300, None, None)


def drawn(name: str, tokens: list[str], maps: Any) -> list[str]:
    """The lines of a map in a terminal without colours."""
    console = Console(width=100, color_system=None, file=io.StringIO(), record=True)
    console.print(encode.draw_shades(name, tokens, np.array(maps)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_map_is_drawn_in_shades_with_its_tokens() -> None:
    """A row for each query; a share of 1 is a full cell, of 0 a dot."""
    maps = [[1, 0, 0], [0.25, 0.25, 0.5], [0, 1, 0]]

    title, *rows = drawn("L0H5", ["[CLS]", "all", "well"], maps)

    dot, half, most, full = (letter * 2 for letter in "\u00b7\u2592\u2593\u2588")
    assert title.startswith("L0H5")
    assert rows == [
        f"[CLS] {full}{dot}{dot}",
        f"all   {half}{half}{most}",
        f"well  {dot}{full}{dot}",
    ]


def test_a_long_text_is_drawn_as_far_as_a_terminal_goes() -> None:
    """40 tokens each way."""
    _, *rows = drawn("L0H0", ["a"] * 99, [[1 / 99] * 99] * 99)

    assert len(rows) == 40 and {len(row) for row in rows} == {2 + 80}


async def test_a_map_is_drawn_next_to_the_table(address: str, tmp_path: Path) -> None:
    """Of the head that is named, with its model; 'well' takes 0.62 of 'all'."""
    line = ["encode", "All is well", "--attention", "L0H5", "--url", address]

    shown = await asyncio.to_thread(
        CliRunner().invoke, main, [*line, "--plot", str(tmp_path / "a.svg")]
    )

    drawn = (tmp_path / "a.svg").read_text()
    assert shown.exit_code == 0 and "L0H5: each token looks" in shown.stdout
    assert ">L0H5 of all-MiniLM-L6-v2" in drawn and ">0.62<" in drawn and ">[CLS]<" in drawn


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["a", "--plot", "a.png"], "--plot also needs --attention, such as --attention L0H5"),
        (["a", "--attention", "L0H5", "--plot", "a.pdf"], "must end in .png or .svg"),
        (["a", "--out", "a.npy"], "TEXT and --out exclude each other"),
        (
            ["--file", "a.txt", "--out", "b", "--plot", "a.png"],
            "--file and --plot exclude each other",
        ),
    ],
    ids=["no head", "format", "no file of texts", "a file of texts"],
)
def test_what_cannot_be_written_is_refused_before_anyone_is_asked(
    options: list[str], reason: str
) -> None:
    """In one line, with the status of a wrong command."""
    shown = CliRunner().invoke(main, ["encode", *options, "--url", "http://127.0.0.1:9"])

    assert (shown.exit_code, shown.output.count("\n")) == (2, 1)
    assert reason in shown.output
