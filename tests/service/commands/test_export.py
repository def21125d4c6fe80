"""`headlight encode TEXT --export`: what BertViz and CircuitsVis take, and what they make of it."""

import asyncio
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

from service.cli import main
from service.commands import encode
from service.commands.terminal import Unusable

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[3]
TEXT = "A dog ate the </script> food"
LAYERS, HEADS = 6, 12  # of the bundled model
PACKAGES = ("bertviz==1.4.1", "circuitsvis==1.43.3")
THEIRS = ("ipython==9.18.1", "importlib-metadata==10.2.0")  # what the two import, beside torch
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


async def test_arrays_are_shaped_as_bertviz_and_circuitsvis_take_them(
    address: str, client: Any, tmp_path: Path
) -> None:
    """By layer (1, heads, query, key), to the bit, beside the tokens and what made them."""
    out = tmp_path / "maps.npz"

    result = await run(address, "--export", "arrays", "--out", str(out))

    tokens, expected = await maps(client)
    saved = np.load(out)
    assert (result.exit_code, result.stdout) == (0, f"all maps in {out}\n")
    assert set(saved) == {"attention", "tokens", "model", "weights", "numerics"}
    np.testing.assert_array_equal(saved["attention"], expected[:, None], strict=True)
    assert saved["tokens"].tolist() == tokens
    assert str(saved["model"]) == "all-MiniLM-L6-v2"


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
async def test_what_cannot_be_written_is_refused_before_anyone_is_asked(
    options: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line."""
    monkeypatch.setitem(sys.modules, "bertviz", None)

    result = await run("http://127.0.0.1:9", *options)

    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr and result.stderr.count("\n") == 1


async def test_a_text_that_no_browser_would_draw_is_refused() -> None:
    """By its number of tokens."""
    tokens = ["a"] * (encode.MOST_TOKENS + 1)

    with pytest.raises(Unusable, match="a page holds 64 tokens; this text has 65"):
        encode.page(None, {}, np.zeros((1, 1, 1, 65, 65)), tokens)


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
