"""How large the house is, room by room, and how long the way of a request through it is.

    python -m tests.ruler [REVISION]

Counts lines of code, which are neither docstrings, comments, blank nor imports, and functions; of
the working tree also the files and functions of ours that one POST /v1/embeddings calls.
"""

import ast
import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx

ROOT = Path(__file__).parent.parent
FOLDERS = ("service", "model", "client")


class Size(NamedTuple):
    """Of some Python."""

    lines: int
    functions: int


def measure(text: str) -> Size:
    """Count the lines of code and the functions of a module's text."""
    skipped, functions = set[int](), 0
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                functions += 1
    lines = (line.strip() for line in text.splitlines())
    code = [
        number
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#") and number not in skipped
    ]
    return Size(len(code), functions)


def texts(revision: str | None) -> Iterator[tuple[str, str]]:
    """Yield each module's path and text, of the working tree or of a commit."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    if revision is None:
        for path in git("ls-files", "--cached", "--others", "--exclude-standard").splitlines():
            if is_ours(path) and (ROOT / path).exists():
                yield path, (ROOT / path).read_text()
    else:
        for path in git("ls-tree", "-r", "--name-only", revision, *FOLDERS).splitlines():
            if is_ours(path):
                yield path, git("show", f"{revision}:{path}")


def is_ours(path: str) -> bool:
    """Tell whether a file is a module of the product."""
    return path.endswith(".py") and path.startswith(tuple(f"{folder}/" for folder in FOLDERS))


def room(path: str) -> str:
    """Name the folder below service/ or model/ that a module lies in; loose files are theirs."""
    first, second, *rest = path.split("/")
    return f"{first}/{second}" if rest and first != "client" else first


async def walk() -> set[tuple[str, str]]:
    """Return the file and name of each function of ours that a short POST /v1/embeddings calls."""
    from service.edge.door import Door
    from service.replica import Replica
    from service.settings import Settings

    async def scrape(openmetrics: bool, every_model: bool) -> bytes:
        return b""

    called, top, asking = set[tuple[str, str]](), f"{ROOT}/", False

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename.removeprefix(top)
        if (
            asking
            and event == "call"
            and is_ours(name)
            and not frame.f_code.co_name.startswith("<")
        ):
            called.add((name, frame.f_code.co_qualname))

    sys.setprofile(note)
    threading.setprofile(note)  # of the threads that the replica starts
    replica = await Replica.start(Settings(threads=1, device="cpu"), "walk-1")
    transport = httpx.ASGITransport(Door(replica, scrape))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        asked = {"model": replica.name, "input": "All is well"}
        await client.post("/v1/embeddings", json=asked)  # what is made once
        asking = True
        answer = await client.post("/v1/embeddings", json=asked)
        asking = False
        answer.raise_for_status()
    sys.setprofile(None)
    await replica.close()
    return called


def main() -> None:
    """Print the table, and the way of a request."""
    revision = sys.argv[1] if sys.argv[1:] else None
    lines, functions, files = Counter[str](), Counter[str](), Counter[str]()
    for path, text in texts(revision):
        for name in (room(path), "all"):
            size = measure(text)
            lines[name] += size.lines
            functions[name] += size.functions
            files[name] += 1
    print(f"{'room':<24}{'code lines':>11}{'functions':>11}{'files':>7}")
    for name in (*sorted(lines - Counter({"all": lines["all"]})), "all"):
        print(f"{name:<24}{lines[name]:>11,}{functions[name]:>11,}{files[name]:>7}")
    if revision is None:
        called = asyncio.run(walk())
        print(f"POST /v1/embeddings: {len({path for path, _ in called})} files,", end=" ")
        print(f"{len(called)} functions")


if __name__ == "__main__":
    main()
