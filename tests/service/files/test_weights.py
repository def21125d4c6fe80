"""What --model names; the hub is a stand-in on this machine, or a cache and no hub."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from model.config import TRANSFORMER_BASE
from service.files.weights import (
    BUNDLED_MODEL,
    ModelNotFound,
    ModelSource,
    locate_model,
    pin_revision,
)
from service.pipeline.replica import Replica
from service.start import launch
from service.tables.settings import Settings
from tests.replica_internals import altered

ROOT = Path(__file__).parent.parent.parent.parent
OLD, NEW = "1" * 40, "2" * 40  # commits
NAME = "org/name"
# Imports torch once, and never the hub's library, which reads variables once: each child's own
CHILDREN = """
import json, os, sys
from pathlib import Path
import service.files.tokenizers
from service.files.weights import ModelNotFound, locate_model, locate_with_pickles, pin_revision

def ask(model):
    try:
        return [str(part) for part in locate_model(model)[:3]] + [pin_revision(model)]
    except ModelNotFound as error:
        return str(error)

def list_files(model):
    folder = locate_with_pickles(model)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))

for line in sys.stdin:
    function, models, variables = json.loads(line)
    assert "huggingface_hub" not in sys.modules
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        assert status == 0
    else:
        os.environ.update(variables)
        print(json.dumps([globals()[function](model) for model in models]), flush=True)
        os._exit(0)
"""

Ask = Callable[..., Any]


def test_the_bundled_model_and_a_folder_are_found_by_name(tmp_path: Path) -> None:
    """The folder's own name becomes the model's."""
    (tmp_path / "mine").mkdir()

    assert (locate_model(BUNDLED_MODEL).folder / "model.safetensors").is_file()
    assert locate_model(str(tmp_path / "mine")) == ModelSource(tmp_path / "mine", "mine")


def test_a_preset_has_sizes_and_the_bundled_tokenizer() -> None:
    """Of the folder nothing else is read."""
    found = locate_model("preset:transformer-base")

    assert (found.folder, found.name) == (
        locate_model(BUNDLED_MODEL).folder,
        "preset:transformer-base",
    )
    assert (found.preset, locate_model(BUNDLED_MODEL).preset) == (TRANSFORMER_BASE, None)


@pytest.mark.parametrize(
    "model", ["nowhere", "/not/here", "preset:large", "a/b/../c", "../up/there"]
)
def test_anything_else_is_refused_by_name(model: str) -> None:
    """With what there is instead; the hub is not asked."""
    with pytest.raises(ModelNotFound, match=f"no folder {model}; expected .*preset:trans"):
        locate_model(model)


@pytest.mark.parametrize(
    "model", [BUNDLED_MODEL, "preset:transformer-base", str(ROOT), "/not/here"]
)
def test_what_is_not_of_the_hub_is_pinned_as_it_is(model: str) -> None:
    """A folder of another machine included."""
    assert pin_revision(model) == model


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process whose children locate models."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command, pipe = [sys.executable, "-c", CHILDREN], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=kept, stdin=pipe, stdout=pipe, text=True) as one:
        yield one


@pytest.fixture
def ask(parent: subprocess.Popen[str], tmp_path: Path) -> Ask:
    """Locate and pin models in a process of its own, as the hub's library reads variables once.

    Gives of each folder, name, commit and pinned name, or the refusal.
    """

    def answer(*models: str, function: str = "ask", **variables: str) -> list[Any]:
        own = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1", **variables}
        assert parent.stdin and parent.stdout
        print(json.dumps([function, models, own]), file=parent.stdin, flush=True)
        told: list[Any] = json.loads(parent.stdout.readline())
        return told

    return answer


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """The bundled model's files in a cache of the hub, at two commits of which one is main."""
    home = tmp_path / "home" / "hub" / "models--org--name"
    for commit in (OLD, NEW):
        shutil.copytree(locate_model(BUNDLED_MODEL).folder, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(NEW)
    return home


def test_without_the_hub_only_what_is_cached_whole_is_found(ask: Ask, cached: Path) -> None:
    """At its newest commit, to which it is pinned, or at the one that is asked for; no pickle."""
    pickled = shutil.copytree(cached, cached.parent / "models--org--pickled")
    (pickled / "snapshots" / NEW / "model.safetensors").unlink()

    newest, old, other, revision, refused = ask(
        NAME, f"{NAME}@{OLD}", "org/other", f"{NAME}@v1", "org/pickled", HF_HUB_OFFLINE="1"
    )

    assert newest == [str(cached / "snapshots" / NEW), NAME, NEW, f"{NAME}@{NEW}"]
    assert old == [str(cached / "snapshots" / OLD), NAME, OLD, f"{NAME}@{OLD}"]
    reason = "its files are not all in the cache, and HF_HUB_OFFLINE is set"
    assert other == f"no folder org/other@main, {reason}"
    assert revision == f"no folder {NAME}@v1, {reason}"
    assert refused.startswith("org/pickled has no safetensors, and pickles are not read; `headlig")


class Hub(BaseHTTPRequestHandler):
    """The hub's endpoints that a snapshot needs; one model, at two commits."""

    files: dict[str, bytes]
    fetched: list[str]

    def do_HEAD(self) -> None:
        """What a file is, without it."""
        self.do_GET()

    def do_GET(self) -> None:
        """A commit, the list of its files, or one of them."""
        path = self.path.partition("?")[0].strip("/")
        if path.startswith("org/gated/") or "locked" in path:
            return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if "org/name" not in path:
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        revision = path.removeprefix("api/models/org/name").strip("/").split("/")[-1]
        if path.startswith("api/models/org/name/tree/"):
            sizes = {name: len(content) for name, content in self.files.items()}
            entries = [
                {"type": "file", "path": name, "size": size, "oid": f"{size:040x}"}
                for name, size in sizes.items()
            ]
            return self.answer(200, json.dumps(entries).encode())
        if path.startswith("api/models/"):
            commit = {"main": NEW, "v1": OLD, OLD: OLD, NEW: NEW}.get(revision)
            if commit is None:
                return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            siblings = [{"rfilename": name} for name in self.files]
            body = {"_id": "1", "id": NAME, "sha": commit, "siblings": siblings}
            return self.answer(200, json.dumps(body).encode())
        commit, _, name = path.removeprefix("org/name/resolve/").partition("/")
        if self.command == "GET":
            self.fetched.append(name)
        content = self.files[name]
        etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit}
        return self.answer(200, content, etag)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send it, to a HEAD without its body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[type[Hub]]:
    """The stand-in, running; `endpoint` is its address."""
    folder = locate_model(BUNDLED_MODEL).folder
    given = {
        str(path.relative_to(folder)): f"of {path.name}, {path.parent.name}".encode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    extra = ["2_Dense/model.safetensors", "onnx/model.safetensors", "pytorch_model.bin", "trap.py"]
    files = {**given, **{name: b"x" * place for place, name in enumerate(extra, 100)}}
    handler = type("Handler", (Hub,), {"files": files, "fetched": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_model_is_fetched_from_the_hub_once_and_in_part(ask: Ask, hub: Any) -> None:
    """Configs, tokenizer, vocabulary and safetensors; no pickle, no code, no other formats."""
    hub.files["0_Transformer/vocab.txt"] = b"of an encoder in a folder of its own"
    first, again = ask(NAME, NAME, HF_ENDPOINT=hub.endpoint)
    (offline,) = ask(NAME, HF_HUB_OFFLINE="1")

    assert first == again == offline
    assert first[1:] == [NAME, NEW, f"{NAME}@{NEW}"]
    assert (
        sorted(hub.fetched)
        == sorted(set(hub.fetched))
        == sorted(
            {
                "0_Transformer/vocab.txt",
                "1_Pooling/config.json",
                "2_Dense/model.safetensors",
                "config.json",
                "model.safetensors",
                "modules.json",
                "sentence_bert_config.json",
                "special_tokens_map.json",
                "tokenizer.json",
                "tokenizer_config.json",
                "vocab.txt",
                *({"config_sentence_transformers.json"} & hub.files.keys()),
            }
        )
    )
    assert (Path(first[0]) / "model.safetensors").read_bytes().startswith(b"of model")


OF_LAYA = (
    "rl_agent_config.json",
    "model.safetensors",
    "encoder/config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
)


def test_a_model_in_a_folder_of_its_repository_is_fetched_alone(ask: Ask, hub: Any) -> None:
    """By its name and that folder's, at any revision; neither its neighbours nor code."""
    others = ("encoder/modeling.py", "calibration.json", "optimizer.pt")
    for name in (*OF_LAYA, *others):
        hub.files[f"laya/small/{name}"] = name.encode()
    named = f"{NAME}/laya/small"

    first, pinned, none = ask(named, f"{named}@v1", f"{NAME}/laya/large", HF_ENDPOINT=hub.endpoint)
    (offline,) = ask(named, HF_HUB_OFFLINE="1")

    assert first == offline and first[1:] == [named, NEW, f"{named}@{NEW}"]
    folder = Path(first[0])
    assert (folder.parts[-3:], folder.is_dir()) == ((NEW, "laya", "small"), True)
    assert pinned[1:] == [named, OLD, f"{named}@{OLD}"]
    assert {*hub.fetched} == {f"laya/small/{name}" for name in OF_LAYA}
    assert none == f"{NAME}@main has no model in laya/large"


def test_of_a_repository_with_a_laya_and_folders_of_others_its_own_is_fetched(
    ask: Ask, hub: Any
) -> None:
    """The library's first repository holds one, and more in folders."""
    for name in OF_LAYA:
        hub.files[name] = hub.files[f"other/{name}"] = name.encode()

    ((folder, *_),) = ask(NAME, HF_ENDPOINT=hub.endpoint)

    assert {*OF_LAYA} <= {*hub.fetched} and (Path(folder) / "tokenizer/tokenizer.json").is_file()
    assert not [name for name in hub.fetched if name.startswith("other/")]


def test_pickles_in_a_folder_of_a_repository_are_fetched_to_be_converted(
    ask: Ask, hub: Any
) -> None:
    """Those of that folder alone."""
    hub.files["small/config.json"] = hub.files["small/pytorch_model.bin"] = b"{}"

    (found,) = ask(f"{NAME}/small", function="list_files", HF_ENDPOINT=hub.endpoint)

    assert found == ["config.json", "pytorch_model.bin"]


def test_an_encoder_in_a_folder_of_its_own_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its weights are no pickle, though the repository's first folder holds none."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *asked, **how: str(tmp_path))
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer" / "model.safetensors").touch()

    assert locate_model(NAME).folder == tmp_path


def test_a_model_is_fetched_with_its_pickles_where_they_are_to_be_converted(
    ask: Ask, hub: Any
) -> None:
    """Those of the encoder only where it has no safetensors; still no code."""
    hub.files["2_Dense/pytorch_model.bin"] = b"dense"
    (safe,) = ask(NAME, function="list_files", HF_ENDPOINT=hub.endpoint)
    del hub.files["model.safetensors"]
    (old,) = ask(f"{NAME}@v1", function="list_files", HF_ENDPOINT=hub.endpoint)

    assert {"2_Dense/pytorch_model.bin", "model.safetensors", "vocab.txt"} <= set(safe)
    assert "pytorch_model.bin" not in safe and "pytorch_model.bin" in old
    assert "model.safetensors" not in old and not {"trap.py"} & {*safe, *old}


REFUSED = {
    "org/other": "no folder org/other@main, and the hub shows no such model",
    "org/locked": "no folder org/locked@main, and on the hub you must accept its licence",
    "org/name@v9": "org/name has no revision v9",
}


def test_a_revision_is_looked_up_at_the_hub(ask: Ask, hub: Any) -> None:
    """A tag becomes the commit it names; what the hub does not give is refused in one line."""
    found, *refused = ask(f"{NAME}@v1", *REFUSED, HF_ENDPOINT=hub.endpoint)

    assert found[1:] == [NAME, OLD, f"{NAME}@{OLD}"]
    for said, begins in zip(refused, REFUSED.values(), strict=True):
        assert said.startswith(begins) and "\n" not in said


def test_a_hub_that_does_not_answer_is_said_so(ask: Ask) -> None:
    """Nothing listens there."""
    (refused,) = ask(NAME, HF_ENDPOINT="http://127.0.0.1:1")

    why = "its files are not all in the cache, and the hub cannot be reached"
    assert refused == f"no folder {NAME}@main, {why}"


@pytest.mark.prove
async def test_a_preset_is_served_and_shown_to_be_untrained(base: Replica) -> None:
    """Checked at the start as any model is."""
    info = base.info()

    assert (info["model"], info["trained"]) == ("preset:transformer-base", False)
    assert (info["layers"], info["heads"], info["width"]) == (6, 8, 512)


async def test_a_checkpoint_is_shown_to_be_trained(replica: Replica) -> None:
    """As far as anybody can tell."""
    assert replica.info()["trained"] is True


def test_every_replica_is_told_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `main` is tomorrow is nothing to a service that runs."""
    there = f"snapshots/{NEW}"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *asked, **how: there)

    (pinned,) = launch.pin_models([Settings(model=NAME, address="auto")])
    assert pinned.model == f"{NAME}@{NEW}"
    assert launch.pin_models([Settings()]) == [Settings()]


async def test_the_commit_of_a_hubs_model_is_shown(replica: Replica) -> None:
    """A branch's name says little of what is served."""
    found = altered(replica, source=locate_model(BUNDLED_MODEL)._replace(commit=NEW))

    assert found.info()["revision"] == NEW
