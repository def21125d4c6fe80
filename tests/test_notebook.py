"""docs/notebook.ipynb shows what its cells give.

`python -m tests.test_notebook URL` writes what they give now. The cells run here, in their order,
without a kernel: of each what it prints and its last value, as a notebook would show them.
"""

import ast
import asyncio
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"
PAGES_URL = "http://127.0.0.1:8000"
MOST_BYTES = 200_000  # of the file, which a public host renders whole


def run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; return its outputs in the format of notebooks."""
    tree, printed, value = ast.parse(source), io.StringIO(), None
    with redirect_stdout(printed):
        if isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
            exec(compile(tree, "cell", "exec"), names)
            value = eval(compile(last, "cell", "eval"), names)
        else:
            exec(compile(tree, "cell", "exec"), names)
    text = printed.getvalue()
    outputs: list[dict[str, Any]] = []
    if text:
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(text)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        outputs.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return outputs


def lines(text: str) -> list[str]:
    """A text as notebooks hold it."""
    return text.splitlines(keepends=True)


def execute(url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The notebook as it is, and with the outputs of a service."""
    kept = json.loads(NOTEBOOK.read_text("utf-8"))
    made, names = json.loads(NOTEBOOK.read_text("utf-8")), dict[str, Any]()
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        outputs = run("".join(cell["source"]).replace(PAGES_URL, url), names)
        for output in outputs:
            if output["output_type"] == "execute_result":
                output["execution_count"] = count
        cell |= {"execution_count": count, "outputs": outputs}
    return kept, made


async def test_every_cell_gives_what_the_notebook_shows(address: str) -> None:
    """To the letter; of pictures their titles, since the edges of letters are a machine's own."""
    kept, made = await asyncio.to_thread(execute, address)

    shown = [picture for notebook in (kept, made) for picture in pictures(notebook)]
    assert kept == made
    assert len(shown) == 6 and all(picture.startswith(b"\x89PNG") for picture in shown)
    assert NOTEBOOK.stat().st_size < MOST_BYTES


def pictures(notebook: dict[str, Any]) -> list[bytes]:
    """Take the pictures out of a notebook's outputs; their titles are in the text next to them."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    found = [output["data"].pop("image/png", None) for output in outputs if "data" in output]
    return [base64.b64decode(picture) for picture in found if picture]


if __name__ == "__main__":
    NOTEBOOK.write_text(json.dumps(execute(sys.argv[1])[1], indent=1, sort_keys=True) + "\n")
