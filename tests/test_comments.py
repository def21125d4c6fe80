"""Comments and docstrings of the product's code name files that are there."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("service", "model", "client", "deploy")
LINES, BLOCKS = r"(?<!:)//([^\n]*)", r"/\*(.*?)\*/"
COMMENTS = {
    ".cpp": f"{LINES}|{BLOCKS}",
    ".h": f"{LINES}|{BLOCKS}",
    ".js": f"{LINES}|{BLOCKS}",
    ".css": BLOCKS,
    ".lua": r"--([^\n]*)",
    **dict.fromkeys((".yaml", ".yml", ".toml"), r"(?:^|\s)#([^\n]*)"),
}
NAME = re.compile(
    r"(?<![\w/*.<{-])((?:[\w.-]+/)*[\w-]+\.(?:py|cpp|h|js|css|lua|ya?ml|toml|md))\b(?![\w(/])"
)
# Of others: the kernel's and libraries' files, API's documents, a user's own, a project
OTHERS = {
    "base/modules/router.py", "base/modules/transformer.py",
    "cross_encoder/modules/logit_score.py", "extension_binary_data.md",
    "finetune/embedder/encoder_only/m3/modeling.py", "inference/embedder/encoder_only/m3.py",
    "inference_rest.md", "infra/config/settings.py", "laya/agent.py", "laya/common.py",
    "linux/filter.h", "linux/tcp.h", "llama.cpp", "mine.yaml", "mkl_service.h", "modeling_lora.py",
    "models.yaml", "models/Dense.py", "models/colbert.py", "openapi.yaml",
    "pipelines/zero_shot_classification.py", "src/cpu/x64/injectors/jit_uni_eltwise_injector.cpp",
}  # fmt: skip


def files(root: Path) -> list[Path]:
    """The product's code."""
    found = (path for folder in FOLDERS for path in (root / folder).rglob("*"))
    return [path for path in found if path.suffix in (".py", *COMMENTS) and path.is_file()]


def comments(path: Path) -> Iterator[str]:
    """The comments of a file, and a Python file's docstrings."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        found = re.finditer(COMMENTS[path.suffix], text, re.MULTILINE | re.DOTALL)
        yield from (next(filter(None, one.groups()), "") for one in found)
        return
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(file.readline)
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def gone(root: Path, there: set[str]) -> list[str]:
    """Each name in a comment that is no file's; one without a folder is of the same part."""
    said = []
    for path in files(root):
        inside = path.relative_to(root)
        near = {n for n in there if "/" not in n or n.startswith(f"{inside.parts[0]}/")}
        for name in {name for text in comments(path) for name in NAME.findall(text)} - OTHERS:
            among = there if "/" in name else near
            if not any(f"/{one}".endswith(f"/{name}") for one in among):
                said.append(f"{inside}: {name}")
    return sorted(said)


def test_a_comment_names_files_that_are_there() -> None:
    """Of the same part of the product, or by a path; what is another's is listed."""
    there = {str(path.relative_to(ROOT)) for path in files(ROOT)}
    there |= {str(path.relative_to(ROOT)) for path in ROOT.glob("*.*")}
    for folder in ("docs", "tests", "benchmarks", ".github", *FOLDERS):
        there |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.*")}

    assert len(files(ROOT)) > 250
    assert gone(ROOT, there) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "x = 1  # as in ghost.py\n"),
        ("b.py", 'def f() -> None:\n    """Do as model/ghost.py does."""\n'),
        ("c.cpp", "int x;  // see ghost.h\n/* and\n ghost.py */\n"),
        ("d.js", "// ghost.js\n"),
        ("e.yaml", "a: 1 # ghost.yaml\n"),
        ("f.toml", "# ghost.toml\n"),
    ],
)
def test_a_name_of_nothing_is_found(tmp_path: Path, name: str, text: str) -> None:
    """In a comment of each kind, and not where it is there."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).write_text(text)
    named = {f"model/{one.rpartition('/')[2]}" for one in NAME.findall(text)}

    assert named and len(gone(tmp_path, set())) == len(named)
    assert gone(tmp_path, named) == []
