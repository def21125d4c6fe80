"""What headlight encode TEXT makes of an answer: a table, a map, and what other tools take."""

import asyncio
import io
import json
import re
import subprocess
import sys
import sysconfig
from asyncio.subprocess import PIPE
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from service.cli import main
from service.commands import encode
from service.commands.bulk import jobs
from service.commands.terminal import Failed, Unusable
from service.replica import Replica
from tests.seams import under


@pytest.mark.parametrize(("name", "found"), [("L5H11", (5, 11)), ("l0h3", (0, 3))])
def test_a_head_is_named_by_layer_and_number(name: str, found: tuple[int, int]) -> None:
    """As the papers write it."""
    assert encode.parse_head(name) == found


@pytest.mark.parametrize("name", ["5.11", "L5", "H11L5", "L-1H2", ""])
def test_anything_else_names_no_head(name: str) -> None:
    """And the refusal shows how it is done."""
    with pytest.raises(Unusable, match="L5H11"):
        encode.parse_head(name)


def test_a_service_that_is_not_there_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a stack of exceptions."""
    monkeypatch.setattr(jobs, "INFO_SECONDS", 0.5)

    with pytest.raises(Failed, match="no answer from http://127.0.0.1:9"):
        encode.example("http://127.0.0.1:9")


@pytest.mark.asyncio(loop_scope="session")
async def test_the_example_is_a_command_and_its_real_answer(address: str, client: Any) -> None:
    """Long vectors are cut to three numbers, all numbers to four places."""
    shown = await asyncio.to_thread(encode.example, address)

    command, answer = shown.rsplit("\n", 1)
    told = json.loads(answer)["data"][0]
    real = (await client.post("/v1/encode", json=encode.EXAMPLE)).json()["data"][0]
    assert command.startswith(f"curl {address}/v1/encode") and json.dumps(encode.EXAMPLE) in command
    assert told["pooled"] == [round(x, 4) for x in real["pooled"][:3]] + ["..."]
    assert told["tokens"] == real["tokens"]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_refusal_says_what_the_service_says(address: str) -> None:
    """Also how many layers and heads there are."""
    with pytest.raises(Failed, match="422 .*: .* is not a layer of this model: layers are 0 to 5"):
        await asyncio.to_thread(encode.table, address, None, "All is well", "L9H99", None)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_long_text_is_refused_even_by_a_service_that_cuts(
    replica: Replica, listen: Any, outer: Any
) -> None:
    """A table or a file of maps would not say that a part is missing."""
    async with listen(outer(under(replica, truncate="right"))) as url:
        with pytest.raises(Failed, match="it has 302 tokens"):
            await asyncio.to_thread(encode.table, url, None, "well " * 300, None, None)


def drawn(name: str, tokens: list[str], maps: Any) -> list[str]:
    """The lines of a map in a terminal without colours."""
    console = Console(width=100, color_system=None, file=io.StringIO(), record=True)
    console.print(encode.shades(name, tokens, np.array(maps)))
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


@pytest.mark.asyncio(loop_scope="session")
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
        (["a", "--plot", "a.png"], "name it by --attention, such as L0H5"),
        (["a", "--attention", "L0H5", "--plot", "a.pdf"], "must end in .png or .svg"),
        (
            ["--file", "a.txt", "--out", "b", "--plot", "a.png"],
            "--file excludes --attention, --plot",
        ),
    ],
    ids=["no head", "format", "a file of texts"],
)
def test_a_picture_that_cannot_be_drawn_is_refused_before_anyone_is_asked(
    options: list[str], reason: str
) -> None:
    """In one line, with the status of a wrong command."""
    shown = CliRunner().invoke(main, ["encode", *options, "--url", "http://127.0.0.1:9"])

    assert (shown.exit_code, shown.output.count("\n")) == (2, 1)
    assert reason in shown.output


ROOT = Path(__file__).parents[3]
TEXT = "A dog ate the </script> food"
LAYERS, HEADS = 6, 12  # of the bundled model
PACKAGES = ("bertviz==1.4.1", "circuitsvis==1.43.3")
THEIRS = ("ipython==9.18.1", "importlib-metadata==10.2.0")  # what the two import, besides torch
# what a user of theirs writes
SCRIPT = """
import sys
import numpy as np
import torch
from bertviz import head_view, model_view
from circuitsvis.attention import attention_patterns
maps = np.load(sys.argv[1])
attention, tokens = torch.tensor(maps["attention"]), maps["tokens"].tolist()
pages = [
    view(attention=list(attention), tokens=tokens, html_action="return").data
    for view in (head_view, model_view)
]
assert all('"attn"' in page for page in pages)
print(attention_patterns(tokens=tokens, attention=maps["attention"][5, 0]).local_src)
"""


async def run(address: str, *options: str) -> Result:
    """Run `headlight encode`."""
    command = ["encode", TEXT, *options, "--url", address]
    return await asyncio.to_thread(CliRunner().invoke, main, command, catch_exceptions=False)


async def maps(client: Any) -> tuple[list[str], Any]:
    """Tokens and all maps as POST /v1/encode answers them, (layers, heads, query, key)."""
    body = {"inputs": [TEXT], "attention": {}}
    told = (await client.post("/v1/encode", json=body)).json()["data"][0]
    layers = told["attention"]["maps"]
    nested = [[layers[str(i)][str(j)] for j in range(HEADS)] for i in range(LAYERS)]
    return told["tokens"], np.array(nested, np.float32)


@pytest.mark.asyncio(loop_scope="session")
async def test_arrays_are_shaped_as_bertviz_and_circuitsvis_take_them(
    address: str, client: Any, tmp_path: Path
) -> None:
    """By layer (1, heads, query, key), to the bit, with the tokens and what made them."""
    out = tmp_path / "maps.npz"

    result = await run(address, "--export", "arrays", "--out", str(out))

    tokens, expected = await maps(client)
    saved = np.load(out)
    assert (result.exit_code, result.stdout) == (0, f"all maps in {out}\n")
    assert set(saved) == {"attention", "tokens", "model", "weights", "numerics"}
    np.testing.assert_array_equal(saved["attention"], expected[:, None], strict=True)
    assert saved["tokens"].tolist() == tokens
    assert str(saved["model"]) == "all-MiniLM-L6-v2"


@pytest.mark.asyncio(loop_scope="session")
async def test_bertviz_is_given_the_maps_and_no_token_ends_its_script(
    address: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in that writes tokens as BertViz does; the real one is held below."""
    out, calls = tmp_path / "views.html", []

    def view(attention: Any, tokens: Any, **how: Any) -> SimpleNamespace:
        calls.append((attention, how["html_action"]))
        return SimpleNamespace(data=f"<script>show({json.dumps(tokens)})</script>")

    bertviz = SimpleNamespace(head_view=view, model_view=view)
    monkeypatch.setitem(sys.modules, "bertviz", bertviz)
    result = await run(address, "--export", "bertviz", "--out", str(out))

    tokens, expected = await maps(client)
    shown = re.findall(r"<script>show\((.*)\)</script>", out.read_text())
    assert result.exit_code == 0 and "<" in tokens
    assert len(shown) == 2 and all(json.loads(one) == tokens and "<" not in one for one in shown)
    for attention, how in calls:
        assert how == "return" and attention.dtype == torch.float32
        np.testing.assert_array_equal(attention.numpy(), expected[:, None])


REFUSED = {
    "no out": (["--export", "arrays"], "--export needs TEXT and --out"),
    "an ending": (["--export", "arrays", "--out", "a.html"], "must end in .npz for arrays"),
    "another": (["--export", "bertviz", "--out", "a.npz"], "must end in .html for bertviz"),
    "a head": (
        ["--export", "arrays", "--out", "a.npz", "--attention", "L0H0"],
        "excludes the other options",
    ),
    "no export": (["--out", "a.npz"], "--out needs --export"),
    "no bertviz": (["--export", "bertviz", "--out", "a.html"], "pip install bertviz"),
}


@pytest.mark.parametrize(("options", "line"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.asyncio(loop_scope="session")
async def test_what_cannot_be_written_is_refused_before_anyone_is_asked(
    options: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line."""
    monkeypatch.setitem(sys.modules, "bertviz", None)

    result = await run("http://127.0.0.1:9", *options)

    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.asyncio(loop_scope="session")
async def test_a_text_that_no_browser_would_draw_is_refused() -> None:
    """By its number of tokens."""
    tokens = ["a"] * (encode.MOST_TOKENS + 1)

    with pytest.raises(Unusable, match="a page holds 64 tokens; this text has 65"):
        encode.page(None, {}, np.zeros((1, 1, 1, 65, 65)), tokens)


@pytest.mark.asyncio(loop_scope="session")
async def test_what_a_service_calls_itself_is_text_of_the_page() -> None:
    """Its name is whatever it says."""
    drawn = SimpleNamespace(data="")
    bertviz = SimpleNamespace(head_view=lambda *a, **k: drawn, model_view=lambda *a, **k: drawn)
    head = {"model": "<script>a", "weights": "b{c}", "numerics": "d&e"}

    page = encode.page(bertviz, head, np.zeros((1, 1, 1, 1, 1)), ["a"])

    assert "<script" not in page and page.count("&lt;script&gt;a") == 2
    assert "(b{c}, d&amp;e)" in page


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with both packages, which sees our torch."""
    folder = tmp_path_factory.mktemp("views")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    for packages in (THEIRS, ("--no-deps", *PACKAGES)):
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
    return python


@pytest.mark.prove
@pytest.mark.asyncio(loop_scope="session")
async def test_the_packages_themselves_draw_our_maps(
    python: Path, address: str, client: Any, tmp_path: Path
) -> None:
    """Unmodified, in an environment of their own; pip fetches them."""
    saved, drawn = tmp_path / "a.npz", tmp_path / "a.html"

    await run(address, "--export", "arrays", "--out", str(saved))
    command = ["-m", "service.cli", "encode", TEXT, "--url", address]
    await said(python, *command, "--export", "bertviz", "--out", drawn)
    pattern = await said(python, "-W", "ignore", "-c", SCRIPT, saved)

    tokens, expected = await maps(client)
    assert "AttentionPatterns" in pattern and json.dumps(tokens) in pattern
    views = re.findall(r"const params = (\{.*?\}); // HACK", drawn.read_text())
    assert len(views) == 2
    for (shown,) in (json.loads(view)["attention"] for view in views):
        assert shown["left_text"] == shown["right_text"] == tokens
        np.testing.assert_array_equal(np.array(shown["attn"], np.float32), expected)
    assert drawn.read_text().count("</script>") == 4


async def said(python: Path, *arguments: object) -> str:
    """What a command of that environment prints."""
    command = map(str, (python, *arguments))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()
