"""How large the house is, room by room, and how long the way of a request through it is.

    python -m tests.ruler [REVISION]

Counts lines of code, which are neither docstrings, comments, blank nor imports, and functions; of
the working tree also the files and functions of ours that one POST /v1/embeddings calls, and the
shapes that its text passes: classes of ours made for it that hold its text, ids or vectors.
"""

import ast
import asyncio
import gc
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch

ROOT = Path(__file__).parent.parent
FOLDERS = ("service", "model", "client")
TEXT = "All is well with the ruler's text"


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


class Walk:
    """What one short POST /v1/embeddings calls and makes of ours, noted by a profiler."""

    def __init__(self) -> None:
        self.functions = set[tuple[str, str]]()  # file and name
        self.made = dict[int, Any]()  # by id, kept so that no id comes twice
        self._before = set[int]()
        self._asking = False

    def begin(self) -> None:
        """Note from here on; what is there is not made by the request."""
        gc.collect()
        self._before, self._asking = {id(one) for one in gc.get_objects()}, True

    def end(self) -> None:
        """Note no more."""
        self._asking = False

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call of a function of ours, and what it has at its return."""
        if not self._asking:
            return
        name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
        if is_ours(name) and event == "call" and not frame.f_code.co_name.startswith("<"):
            self.functions.add((name, frame.f_code.co_qualname))
        if event == "return":
            for value in (argument, *frame.f_locals.values()):
                if is_shape(value) and id(value) not in self._before:
                    self.made[id(value)] = value

    def shapes(self) -> set[str]:
        """Return the names of the classes made that hold the text, its ids or its vectors."""
        return {type(one).__name__ for one in self.made.values() if holds_numbers(one)}

    def companions(self) -> set[str]:
        """Return the names of the other classes made for it."""
        return {type(one).__name__ for one in self.made.values()} - self.shapes()


def is_shape(value: Any) -> bool:
    """Tell whether a value is of a class of ours; those of observe/ only count."""
    module = f"{type(value).__module__}."
    own = module.startswith(("service.", "model.")) and not module.startswith("service.observe.")
    return own and not isinstance(value, Enum | BaseException)


def holds_numbers(shape: Any) -> bool:
    """Tell whether a shape has the text, a list of ids or an array without another shape."""
    seen, found = {id(shape)}, gc.get_referents(shape)
    while found:
        one = found.pop()
        if id(one) in seen or is_shape(one):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray | torch.Tensor) or (isinstance(one, str) and one == TEXT):
            return True
        if isinstance(one, (list, tuple, dict, set)):
            if len(one) > 2 and all(type(each) is int for each in one):
                return True
            found += gc.get_referents(one)
    return False


async def walk() -> Walk:
    """Return what a short POST /v1/embeddings passes."""
    from service.door.door import Door
    from service.pipeline.replica import Replica
    from service.tables.settings import Settings

    async def scrape(openmetrics: bool, every_model: bool) -> bytes:
        return b""

    walk = Walk()
    sys.setprofile(walk.note)
    threading.setprofile(walk.note)  # of the threads that the replica starts
    replica = await Replica.start(Settings(threads=1, device="cpu"), "walk-1")
    transport = httpx.ASGITransport(Door(replica, scrape))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        asked = {"model": replica.name, "input": TEXT}
        await client.post("/v1/embeddings", json=asked)  # what is made once
        walk.begin()
        answer = await client.post("/v1/embeddings", json=asked)
        walk.end()
        answer.raise_for_status()
    sys.setprofile(None)
    threading.setprofile(None)
    await replica.close()
    return walk


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
        way = asyncio.run(walk())
        files_passed = {path for path, _ in way.functions}
        print(f"POST /v1/embeddings: {len(files_passed)} files, {len(way.functions)} functions")
        print(f"{len(way.shapes())} shapes: {', '.join(sorted(way.shapes()))}")
        print(f"{len(way.companions())} companions: {', '.join(sorted(way.companions()))}")


if __name__ == "__main__":
    main()
