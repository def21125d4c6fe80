"""The service on an arm64, which qemu emulates; run by `make arm64`. Nothing here is a speed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arm64 import machine

pytestmark = pytest.mark.prove
ROOT = Path(__file__).parents[2]
CLOSE = 2e-5  # of float32's numbers between processors; as tests/test_golden.py
PYTHON = "/usr/bin/python3"
PYTEST = (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header")
ROW = [0.0514, 0.6182, 0.2171, 0.009, 0.1042]  # README's, of 'well' in head 5 of layer 0


@pytest.fixture(scope="module")
def arm64() -> Path:
    """The machine's files."""
    if reason := machine.missing():
        pytest.skip(reason)
    return machine.make()


@pytest.fixture(scope="module")
def both(arm64: Path) -> list[dict[str, Any]]:
    """What the model gives there, and here."""
    script = "tests.arm64.model_there"
    there = machine.run(arm64, PYTHON, "-m", script)
    assert there.returncode == 0, there.stderr[-4000:]
    here = subprocess.run(
        [sys.executable, "-m", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [
        {
            name: found
            for line in told.stdout.splitlines()
            for name, found in json.loads(line).items()
        }
        for told in (there, here)
    ]


def test_the_compiled_pass_of_arm64s_vectors_serves_there(both: list[dict[str, Any]]) -> None:
    """By the product of its own, not by torch's."""
    assert both[0]["machine"][0] == "aarch64"
    assert both[0]["kernels"][0] == "neon"


def test_every_kind_of_layer_has_the_loops_bits_there(both: list[dict[str, Any]]) -> None:
    """Of one family each, and of the bundled model."""
    cells = {name: same for name, same in both[0].items() if name.startswith("family")}

    assert len(cells) == 9 and all(cells.values()), cells
    assert both[0]["bundled"]


def test_a_sequence_has_the_same_bits_there_alone_and_in_a_batch(
    both: list[dict[str, Any]],
) -> None:
    """Of each length up to some hundred."""
    assert len(both[0]["bits alone and in a batch"]) == 10
    assert all(both[0]["bits alone and in a batch"])


@pytest.mark.parametrize("kind", ["vectors", "maps"])
def test_what_it_finds_is_x86s_but_for_the_last_bits(kind: str, both: list[dict[str, Any]]) -> None:
    """And README's map."""
    found, expected = (np.array(each[kind]) for each in both)

    print(kind, "furthest from x86:", np.abs(found - expected).max())
    assert np.allclose(found, expected, atol=CLOSE, rtol=CLOSE)
    assert kind != "maps" or np.allclose(found[0, 5, 3], ROW, atol=5e-5)


def test_a_replica_there_answers_as_on_x86(arm64: Path) -> None:
    """From text to JSON, without Ray: the same space, README's row, one text's bits in a batch."""
    script = "tests.arm64.replica_there"
    there = machine.run(arm64, PYTHON, "-m", script)
    assert there.returncode == 0, there.stderr[-4000:]
    here = subprocess.run(
        [sys.executable, "-m", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    batch, alone = (json.loads(line) for line in there.stdout.splitlines())
    expected, _ = (json.loads(line) for line in here.stdout.splitlines())

    print(alone["numerics"], "beside", expected["numerics"])
    assert alone["numerics"].startswith("cpu-fp32-neon+native")
    assert [batch[name] for name in ("weights", "space")] == [
        expected[name] for name in ("weights", "space")
    ]
    assert alone["data"][0]["pooled"] == batch["data"][0]["pooled"]
    (row,) = alone["data"][0]["attention"]["maps"]["0"]["5"]
    assert np.allclose(row, ROW, atol=6e-5)
    vectors, others = (
        np.array([each["pooled"] for each in answer["data"]]) for answer in (batch, expected)
    )
    print("vectors furthest from x86:", np.abs(vectors - others).max())
    assert np.allclose(vectors, others, atol=CLOSE, rtol=CLOSE)


def test_linears_and_attentions_are_those_of_torch_in_float64(arm64: Path) -> None:
    """The same tests as on x86."""
    done = machine.run(arm64, *PYTEST, "tests/model/native/test_operators.py")

    assert done.returncode == 0, done.stdout[-4000:]
