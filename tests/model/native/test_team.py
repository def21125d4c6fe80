"""model/native/team.h: the threads of a pass share its pieces, and sleep when it ends."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from model.encoder import Encoder
from model.loading.checkpoint import Model
from model.native.stack import NativeStack
from model.packing import Sequence, pack_sequences

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]


def run(native: NativeStack, tokens: int) -> torch.Tensor:
    """Return the last state of a sequence of so many tokens."""
    ids = [1000 + 7 * i for i in range(tokens)]
    packed = pack_sequences([Sequence(ids)], CPU, unpadded_rows=native.unpadded_rows)
    return native(packed, frozenset(), frozenset()).last


@pytest.fixture(scope="module")
def native(model: Model, stacked: Callable[[Encoder], NativeStack]) -> NativeStack:
    """Return the compiled pass of the bundled model."""
    return stacked(model.encoder)


SPENT = """
import threading, time, torch
from tests.model.native.test_team import run
from model.native import library
from model.native.stack import NativeStack
from service.files.loading import load_model
from service.files.weights import BUNDLED_MODEL, locate_model

model = load_model(locate_model(BUNDLED_MODEL), torch.device("cpu"), torch.float32)
native = NativeStack(model.encoder, library.load_operator())
torch.set_num_threads(2)
spent = []
for _ in range(20):
    run(native, 14)
    before = time.process_time()
    threading.Event().wait(0.02)  # nothing to await: this looks at what does nothing
    spent.append(time.process_time() - before)
print(min(spent))
"""


def test_nothing_runs_once_a_pass_has_ended(native: NativeStack) -> None:
    """Its threads spin within it; after it the event loop and the proxy want their cores."""
    own = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}

    found = subprocess.run(
        [sys.executable, "-c", SPENT], cwd=ROOT, env=own, capture_output=True, text=True, check=True
    )

    assert float(found.stdout) < 0.002  # of 0.02 s; OpenMP's would take half of it


def test_a_pass_has_the_same_bits_by_any_number_of_threads(
    native: NativeStack, threads: Callable[[int], None]
) -> None:
    """More than there are cores too, pass after pass, of few tokens and of many."""
    for tokens in (1, 14, 200):
        threads(1)
        alone = run(native, tokens)
        for cores in (2, 3, 7, 2, 1):
            threads(cores)
            for _ in range(5):
                assert torch.equal(run(native, tokens), alone), (tokens, cores)


def test_threads_with_teams_of_their_own_do_not_disturb_each_other(native: NativeStack) -> None:
    """As several lanes; a thread that ends takes its team along."""
    alone = run(native, 30)

    def pass_often(_: int) -> bool:
        torch.set_num_threads(2)
        return all(torch.equal(run(native, 30), alone) for _ in range(5))

    before, rounds = len(os.listdir("/proc/self/task")), 6
    for _ in range(rounds):
        with ThreadPoolExecutor(3) as pool:
            assert all(pool.map(pass_often, range(3)))

    assert len(os.listdir("/proc/self/task")) < before + 3 * rounds
