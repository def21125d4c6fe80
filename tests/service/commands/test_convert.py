"""`headlight convert`: real pickles, through the command."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertModel

from model import kernels
from model.errors import CheckpointError
from model.loading import checkpoint
from model.packing import Sequence, pack_sequences
from model.pooling import pool_sequence
from service.cli import main
from service.commands import convert, pickles
from tests.model.small_tokenizer import save_small_tokenizer

CPU = torch.device("cpu")
SIZES = {"vocab_size": 41, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 23, "max_position_embeddings": 17, "initializer_range": 0.5}
DENSE = {"in_features": 15, "out_features": 7, "activation_function": "torch.nn.Tanh", "bias": True}
MODULES = [
    {"name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
]


@pytest.fixture
def bert(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A folder with safetensors, saved by transformers, and its tensors."""
    folder = tmp_path / "safe"
    torch.manual_seed(3)
    model = BertModel(BertConfig(**SIZES))
    model.save_pretrained(folder)
    save_small_tokenizer(folder)
    return folder, dict(model.state_dict())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config alone."""
    BertConfig(**SIZES).save_pretrained(tmp_path / "old")
    return tmp_path / "old"


def run(folder: Path) -> Result:
    """Convert a folder into "new" next to it."""
    return CliRunner().invoke(main, ["convert", str(folder), str(folder.parent / "new")])


def read_here(command: list[str], **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Do what a process that reads a pickle does, in this one, which has torch already."""
    source, target = map(Path, command[-3:-1])
    tensors = pickles.load_pickle(torch, source)
    sizes = pickles.write_safetensors(torch, tensors, target)
    pickles.compare_tensors(torch, tensors, target)
    return subprocess.CompletedProcess(command, 0, json.dumps(sizes).encode(), b"")


def refused(folder: Path) -> str:
    """Why a folder is not converted, the last line; nothing of it may be left."""
    before = sorted(folder.parent.iterdir())
    result = run(folder)

    assert result.exit_code == 1
    assert sorted(folder.parent.iterdir()) == before
    return result.stderr.splitlines()[-1]


def pooled(folder: Path) -> Tensor:
    """The vector of a few tokens, of a folder as a replica on a CPU loads it."""
    model = checkpoint.load_checkpoint(folder, CPU, torch.float32, kernels.PLAIN)
    packed = pack_sequences([Sequence([5, 3, 40, 0, 7], [0] * 5)], CPU)
    return pool_sequence(model.encoder(packed).last[packed.rows(0)], model.pooling)


def test_a_converted_checkpoint_gives_the_bits_of_the_one_saved_as_safetensors(
    bert: tuple[Path, dict[str, Tensor]],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a Dense module in a pickle as before 2020, and bge-m3's extra files next to it."""
    safe, tensors = bert
    (safe / "1_Pooling").mkdir()
    (safe / "2_Dense").mkdir()
    (safe / "modules.json").write_text(json.dumps(MODULES))
    (safe / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    activation = {**DENSE, "activation_function": "torch.nn.modules.activation.Tanh"}
    (safe / "2_Dense" / "config.json").write_text(json.dumps(activation))
    dense = {"linear.weight": torch.randn(7, 15), "linear.bias": torch.randn(7)}
    save_file(dense, safe / "2_Dense" / "model.safetensors")
    shutil.copytree(safe, folder, dirs_exist_ok=True)
    for path in (folder / "model.safetensors", folder / "2_Dense" / "model.safetensors"):
        path.unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    old = {"_use_new_zipfile_serialization": False}
    torch.save(dense, folder / "2_Dense" / "pytorch_model.bin", **old)
    for name, outputs in (("sparse_linear", 1), ("colbert_linear", 7)):
        linear = {"weight": torch.ones(outputs, 15), "bias": torch.zeros(outputs)}
        torch.save(linear, folder / f"{name}.pt")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "onnx.onnx").write_bytes(b"no")
    (folder / "onnx").mkdir()
    with pytest.raises(CheckpointError, match=f"headlight convert {folder} OUT"):
        pooled(folder)
    (tmp_path / "new").mkdir()  # an empty folder is taken
    monkeypatch.setattr(subprocess, "run", read_here)

    result = run(folder)

    assert result.exit_code == 0, result.output
    new = tmp_path / "new"
    assert torch.equal(pooled(new), pooled(safe))
    files = {str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()}
    assert files == {
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "colbert_linear.safetensors",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sparse_linear.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert load_file(new / "sparse_linear.safetensors")["weight"].tolist() == [[1.0] * 15]
    model = checkpoint.load_checkpoint(new, CPU, torch.float32, kernels.PLAIN)
    assert model.tasks == ("encode", "sparse", "multi_vector")
    assert "not copied: onnx/, modeling_own.py, onnx.onnx" in result.stderr


def test_shards_become_shards(
    bert: tuple[Path, dict[str, Tensor]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an index of the new names; the first by a process of its own, as they all are."""
    safe, tensors = bert
    steps = iter([subprocess.run])
    monkeypatch.setattr(
        subprocess, "run", lambda *how, **more: next(steps, read_here)(*how, **more)
    )
    save_small_tokenizer(folder)
    names, index = sorted(tensors), {}
    for number, part in enumerate((names[:9], names[9:]), 1):
        shard = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: tensors[name] for name in part}, folder / shard)
        index |= dict.fromkeys(part, shard)
    path = folder / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": index}))

    assert run(folder).exit_code == 0
    new = folder.parent / "new"
    assert sorted(path.name for path in new.glob("model*")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert torch.equal(pooled(new), pooled(safe))

    shutil.rmtree(new)
    first = "pytorch_model-00001-of-00002.bin"
    path.write_text(json.dumps({"weight_map": {"more": first}}))
    assert "pytorch_model.bin.index.json and the shards differ: '" in refused(folder)
    path.write_text(json.dumps({"weight_map": {"a": "../old/pytorch_model.bin"}}))
    assert "names files that are not .bin files of the folder" in refused(folder)


def sources(folder: Path) -> list[str]:
    """The pickles of a folder that would be converted."""
    return [job.source for job in convert._list_jobs(folder, convert._shards_by_tensor(folder))]


def test_every_folder_of_a_model_is_looked_into(folder: Path) -> None:
    """An encoder's own, a Router's; what has safetensors already is not made again."""
    for name in ("0_Transformer", "2_Dense", "query_0_SparseStaticEmbedding", "onnx"):
        (folder / name).mkdir()
        torch.save({"a": torch.ones(2)}, folder / name / "pytorch_model.bin")
    save_file({"a": torch.ones(2)}, folder / "2_Dense" / "model.safetensors")
    (folder / "3_Dense").symlink_to(folder / "onnx")  # which may lead anywhere

    found = ("0_Transformer", "query_0_SparseStaticEmbedding")
    assert sources(folder) == [f"{name}/pytorch_model.bin" for name in found]


def test_one_pickle_goes_before_an_index_beside_it(folder: Path) -> None:
    """As in transformers."""
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
    index = {"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))

    assert sources(folder) == ["pytorch_model.bin"]


def test_where_nothing_can_be_written_is_said_in_one_line(folder: Path) -> None:
    """Before a pickle is read."""
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")

    result = CliRunner().invoke(main, ["convert", str(folder), "/proc/new"])

    assert result.exit_code == 1
    assert "cannot write next to /proc/new" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("today", [True, False], ids=["zip", "before 2020"])
def test_every_bit_of_every_tensor_is_kept(tmp_path: Path, today: bool) -> None:
    """Of tensors that share memory, lie crosswise, are empty, or hold NaNs with a payload.

    As the processes do it that read a pickle.
    """
    whole = torch.arange(35, dtype=torch.float32).reshape(5, 7)
    bits = torch.tensor([0x7FC01234, -1, 1], dtype=torch.int32).view(torch.float32)
    tensors = {
        "tied": whole,
        "again": whole,
        "part": whole[1:3],
        "crosswise": whole.T,
        "nan": bits,
        "half": torch.randn(3).bfloat16(),
        "whole": torch.tensor(7),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "position_ids": torch.arange(5).expand(1, -1),
    }
    path, new = tmp_path / "pytorch_model.bin", tmp_path / "model.safetensors"
    torch.save(tensors, path, _use_new_zipfile_serialization=today)

    pickles.write_safetensors(torch, pickles.load_pickle(torch, path), new)
    pickles.compare_tensors(torch, pickles.load_pickle(torch, path), new)

    written = load_file(new)
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert written[name].dtype == tensor.dtype and written[name].shape == tensor.shape
        assert pickles.as_bytes(torch, written[name]).equal(pickles.as_bytes(torch, tensor))


class Call:
    """What calls something when it is unpickled."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def code(path: Path) -> None:
    """A pickle that would make a file named "harm" next to its folder."""
    harm = str(path.parent.parent / "harm")
    torch.save({"weight": torch.ones(2), "harm": Call(open, (harm, "w"))}, path)


def bare(path: Path) -> None:
    """The same without torch around it."""
    harm = str(path.parent.parent / "harm")
    path.write_bytes(pickle.dumps({"a": Call(open, (harm, "w"))}, protocol=2))


def bomb(path: Path) -> None:
    """Four bytes that claim to be 4 TB."""
    torch.save({"weight": torch.ones(1).expand(10**12)}, path)


def half(path: Path) -> None:
    """The first half of a file."""
    torch.save({"weight": torch.randn(100)}, path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def tar(path: Path) -> None:
    """torch's form of 2016."""
    with tarfile.open(path, "w") as file:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            content = pickle.dumps({"protocol_version": 1000})
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, BytesIO(content))


# Each by a process of its own, which imports torch; `make prove` tries the others, which are read
# in this one below
HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code": (code, "it asks for "),
    "code without torch": (bare, "is refused: it "),
    "a bomb": (bomb, "it asks for more memory than its size explains"),
}
READ_BELOW = ("code", "code without torch")


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.prove] if name in READ_BELOW else [])
        for name, case in HOSTILE.items()
    ],
)
def test_a_pickle_that_is_more_than_tensors_is_refused(
    folder: Path, write: Callable[[Path], Any], reason: str
) -> None:
    """In one line that names the file; no code of it runs, and nothing is left behind."""
    write(folder / "pytorch_model.bin")

    said = refused(folder)

    assert said.startswith("headlight: pytorch_model.bin is refused: ") and reason in said
    assert not (folder.parent / "harm").exists()


OTHER: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code": (code, "it asks for "),
    "code without torch": (bare, "it asks for "),
    "half a file": (half, "torch cannot read it: "),
    "a tar": (tar, "torch cannot read it: "),
    "a module": (lambda path: torch.save(torch.nn.Linear(2, 2), path), "it asks for torch.nn.mod"),
    "a list": (lambda path: torch.save([torch.ones(2)], path), "it holds no tensors by name"),
    "nested": (
        lambda path: torch.save({"state_dict": {"a": torch.ones(2)}}, path),
        "its entry 'state_dict' is not a named tensor",
    ),
    "sparse": (
        lambda path: torch.save({"a": torch.eye(3).to_sparse()}, path),
        "its tensor 'a' is not dense numbers",
    ),
    "a pointer": (lambda path: path.write_text("version https://git-lfs"), "it is not a pickle"),
    "nothing": (lambda path: path.touch(), "torch cannot read it: "),
}


@pytest.mark.parametrize(("write", "reason"), OTHER.values(), ids=OTHER)
def test_what_is_no_tensors_by_name_is_refused(
    tmp_path: Path, write: Callable[[Path], Any], reason: str
) -> None:
    """As the process that reads a pickle does it, in one line; no code of it runs."""
    (tmp_path / "old").mkdir()
    path = tmp_path / "old" / "pytorch_model.bin"
    write(path)

    with pytest.raises(pickles.Unconvertible) as refusal:
        pickles.load_pickle(torch, path)

    assert reason in str(refusal.value) and "\n" not in str(refusal.value)
    assert not (tmp_path / "harm").exists()


def test_the_files_above_would_run_code(folder: Path) -> None:
    """Loaded as pickles are, they make the file that the test looks for."""
    code(folder / "pytorch_model.bin")
    torch.load(folder / "pytorch_model.bin", weights_only=False)["harm"].close()

    assert (folder.parent / "harm").exists()


def test_reading_a_pickle_has_an_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes too long is ended."""
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
    monkeypatch.setattr(convert, "STEP_SECONDS", 0)

    assert "not read within 0 s" in refused(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["TERM", "HUP"])
def test_a_signal_leaves_nothing_half_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Whichever ends the command while it reads."""
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
    monkeypatch.setattr(subprocess, "run", lambda *step, **how: os.kill(os.getpid(), number))
    before = sorted(folder.parent.iterdir())

    earlier = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        result = run(folder)
    finally:
        signal.signal(number, earlier)

    assert (result.exit_code, sorted(folder.parent.iterdir())) == (130, before)
    assert "stopped; nothing was written" in result.stderr


def test_limits_of_the_shell_stay_where_they_are_lower(tmp_path: Path) -> None:
    """They cannot be raised, and need not be."""
    hold = "import resource, runpy, sys; now = resource.getrlimit, resource.RLIMIT_FSIZE\n"
    hold += "resource.setrlimit(now[1], (999, 999))\n"
    hold += "runpy.run_path(sys.argv[1])['lower_limit'](now[1], 5000); print(now[0](now[1]))"
    done = subprocess.run([sys.executable, "-c", hold, pickles.__file__], capture_output=True)

    assert done.stdout == b"(999, 999)\n"


def test_where_there_is_something_already_nothing_is_made(folder: Path) -> None:
    """Whatever it is."""
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
    new = folder.parent / "new"
    new.mkdir()
    (new / "a").touch()
    assert "already exists and is not an empty folder" in refused(folder)
    shutil.rmtree(new)
    new.symlink_to(folder.parent / "nowhere")
    assert "already exists and is not an empty folder" in refused(folder)


def test_a_folder_without_pickles_is_not_converted(folder: Path) -> None:
    """Nor is one whose weights are safetensors already, or one that is not there."""
    assert "holds no pickle to convert" in refused(folder)
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")
    save_file({"a": torch.ones(2)}, folder / "model.safetensors")
    assert "holds no pickle to convert" in refused(folder)
    assert "expected a folder or org/name" in refused(folder / "nowhere")
    elsewhere = [str(folder), str(folder.parent / "not" / "there")]
    assert "is not a folder" in CliRunner().invoke(main, ["convert", *elsewhere]).stderr
