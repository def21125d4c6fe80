"""A checkpoint that no replica would load ends `doctor` and `serve` alike, before Ray starts."""

import json
import math
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from laya import Agent
from safetensors.torch import load_file, save_file

from model import kernels
from service.cli import main
from service.files.weights import locate_model
from service.heads.samples import sample_texts
from service.preflight import model
from service.tables.settings import Settings
from tests.laya_models import make_laya
from tests.task_heads import checkpoint

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789\nsize 133\n"
LAYER = "a layer of all-MiniLM-L6-v2"
WEIGHTS, WORD = "model.safetensors", "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT."""
    folder = tmp_path_factory.mktemp("right")
    checkpoint(folder, "Model")
    return folder


@pytest.fixture
def folder(right: Path, tmp_path: Path) -> Path:
    """A copy of it, of whose files one will be wrong."""
    return shutil.copytree(right, tmp_path, dirs_exist_ok=True)


def config(**changes: object) -> Callable[[Path], None]:
    """Change config.json."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Change the tensors."""

    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return rewrite


def written(name: str, text: str) -> Callable[[Path], object]:
    """Write a file."""
    return lambda folder: (folder / name).write_text(text)


def cut(folder: Path) -> None:
    """As a download that was interrupted."""
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-4])


def without_tokenizer(folder: Path) -> None:
    """Nor a vocabulary to make one of."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").unlink(missing_ok=True)


def gliner(folder: Path) -> None:
    """As the hub has them: the encoder's config.json within the other, the weights in a pickle."""
    (folder / "config.json").rename(folder / "gliner_config.json")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def listed(folder: Path) -> None:
    """A module that somebody wrote."""
    kinds = ("sentence_transformers.models.Transformer", "mine.Attentive")
    rows = [{"path": "", "type": kind} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(rows))


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a header that is cut": (cut, f"{WEIGHTS} is not a safetensors file"),
    "a tensor of another shape": (
        weights(lambda tensors: tensors.update({WORD: torch.ones(3, 15)})),
        f"{WEIGHTS}: {WORD} is (3, 15), not (30522, 15)",
    ),
    "a tensor that is missing": (
        weights(lambda tensors: tensors.pop(WORD)),
        f"{WEIGHTS}: missing {WORD}",
    ),
    "a number that is none": (
        weights(lambda tensors: tensors[WORD].fill_(torch.nan)),
        f"{WORD} holds NaN or infinity",
    ),
    "tensors of int8": (
        weights(lambda tensors: tensors.update({WORD: tensors[WORD].to(torch.int8)})),
        f"{WORD} holds I8, not one of F64, F32, F16, BF16",
    ),
    "bitsandbytes over ordinary weights": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}),
        "quantization_config: not supported: the method bitsandbytes; serve the weights before it",
    ),
    "an older bitsandbytes": (
        config(quantization_config={"load_in_8bit": True}),
        "quantization_config: not supported: the method bitsandbytes;",
    ),
    "another method": (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        "quantization_config: not supported: the method gptq;",
    ),
    "weights not fetched": (
        written(WEIGHTS, POINTER),
        f"{WEIGHTS}: a Git-LFS pointer, not the file's content: git lfs pull",
    ),
    "a vocabulary not fetched": (
        written("tokenizer.json", POINTER),
        "tokenizer.json: a Git-LFS pointer, not the file's content: git lfs pull",
    ),
    "a configuration not fetched": (
        written("config.json", POINTER),
        "config.json: a Git-LFS pointer, not the file's content: git lfs pull",
    ),
    "no tokenizer.json": (without_tokenizer, "lacks tokenizer.json"),
    "a GLiNER": (gliner, "gliner_config.json: not supported: a GLiNER is served by gliner.serve"),
    "a GLiClass": (
        config(model_type="GLiClass", architectures=["GLiClassModel"]),
        "config.json: not supported: a GLiClass is served by gliclass.serve",
    ),
    "a GLiNER2": (
        config(model_type="extractor", architecture="span"),
        "config.json: not supported: a GLiNER2 is run by its own library, gliner2",
    ),
    "a module that is not known": (
        listed,
        "modules.json: not supported: mine.Attentive, module 2 of 2",
    ),
}


def ended(folder: Path, *commands: str) -> list[tuple[int, str]]:
    """How commands end, and what they say last."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    results = [
        CliRunner().invoke(main, [command, str(folder), "--port", port]) for command in commands
    ]
    return [(one.exit_code, one.output.strip().splitlines()[-1]) for one in results]


@pytest.mark.usefixtures("nothing_of_rays")
@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG.keys())
def test_what_no_replica_would_load_is_found_before_ray_starts(
    folder: Path, change: Callable[[Path], object], said: str
) -> None:
    """By both commands, in one line and with the same exit status."""
    change(folder)

    (status, told), (start, line) = ended(folder, "doctor", "serve")

    assert status == start == 1
    assert said in told and said in line
    assert told.startswith("FAIL  model")


def test_of_large_weights_the_headers_are_read_and_not_the_numbers(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A shape is refused at once; a number is left to the replica, which reads all anyway."""
    monkeypatch.setattr(model, "PROBED_BYTES", 0)
    weights(lambda tensors: tensors[WORD].fill_(torch.nan))(folder)
    ((passed, _),) = ended(folder, "doctor")
    weights(lambda tensors: tensors.update({WORD: torch.ones(3, 15)}))(folder)
    ((status, told),) = ended(folder, "doctor")

    assert passed == 0
    assert status == 1 and f"{WORD} is (3, 15)" in told


@pytest.mark.parametrize(
    ("dtype", "half", "ratio", "said"),
    [
        (
            "auto",
            True,
            1.64,
            f"note bfloat16: 1.6 times as fast as float32 here, {LAYER}; --dtype bfloat16",
        ),
        ("auto", True, 31.2, f"note bfloat16: over 2.1 times as fast as float32 here, {LAYER}; "),
        ("auto", False, 1.64, None),
        ("float32", True, 1.64, None),
        ("bfloat16", True, 1.64, f"ok bfloat16: 1.6 times as fast as float32 here, {LAYER}"),
        (
            "bfloat16",
            False,
            0.0311,
            f"note bfloat16: 0.031 times as fast as float32 here, {LAYER}",
        ),
        ("float16", False, 0.2, f"note float16: 0.2 times as fast as float32 here, {LAYER}"),
    ],
)
def test_a_start_says_which_number_format_would_be_faster(
    dtype: Any, half: bool, ratio: float, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what was measured: bfloat16, or float32 where a slower one is asked for."""
    monkeypatch.setattr(kernels, "choose_kernels", lambda *_: replace(kernels.PLAIN, half=half))
    monkeypatch.setattr(model, "compare_speeds", lambda *_: ratio)
    settings = Settings(dtype=dtype, device="cpu")

    found = list(model.measure_speed(settings, locate_model(settings.model)))

    lines = [f"{finding.grade} {finding}" for finding in found]
    assert len(lines) == bool(said)
    assert not said or lines[0].startswith(said)


@pytest.mark.parametrize(
    ("dtype", "measured"), [("bfloat16", True), ("auto", False), ("float16", False)]
)
def test_doctor_measures_how_near_bfloat16_is(
    dtype: Any, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is asked for, by the vectors of texts."""
    monkeypatch.setattr(model, "sample_texts", lambda: sample_texts()[:24])
    settings = Settings(dtype=dtype, device="cpu")

    found = list(model.measure_nearness(settings, locate_model(settings.model)))

    assert [finding.place for finding in found] == ["bfloat16"] * measured
    shape = r"cosines of 24 texts to float32's: 0\.999\d\d at worst, "
    assert not measured or re.match(shape, found[0].what)


def test_doctor_names_temperatures_that_are_not_applied_as_they_are_stored(tmp_path: Path) -> None:
    """Those that the library names at its start, with what is applied instead."""
    stored = {
        "temperature": [0.1, "2", None],
        "temperature_by_options": {"choice:2": True, "noul:2": 9, "score:3-5": math.nan},
    }
    folder = make_laya(tmp_path / "laya", width=12, num_hidden_layers=1, settings=stored)
    settings = Settings(model=str(folder), device="cpu")

    found = list(model.open_checkpoint(settings, locate_model(settings.model)))

    notes = [str(one) for one in found if one.grade == "note"]
    place = "rl_agent_config.json: the temperature of"
    assert notes == [
        f"{place} {name}, no number from 0.5 to 5: {applied} is applied"
        for name, applied in (
            ("choice is 0.1", "0.5"),
            ("noul is None", "1"),
            ("choice:2 is True", "1"),
            ("noul:2 is 9", "5"),
            ("score:3-5 is nan", "1"),
        )
    ]
    with pytest.warns(RuntimeWarning, match="temperatures") as warned:
        Agent(str(folder), device="cpu")
    said = str(warned[0].message)
    assert said.count(" -> ") == len(notes) and "choice:2=True -> 1" in said
    assert found[-1].grade == "ok" and "tasks encode, decide" in found[-1].what
