"""What requests hold together stays within the budget."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.cluster.ingress import HEAP_ENV, KERNEL_CACHE_ENV
from service.tables.memory import SMALL_BYTES, Hold, Memory
from service.tables.refusals import Refused

LIMIT = 7 * SMALL_BYTES
MIB = 1024 * 1024

# every number of rows below 400 once through one linear, as they are or as a batch has them
GROWTH = """
import sys, torch
from model.kernels import PackedLinear
from model.packing import Sequence, pack_sequences
from tests.service.test_memory import resident

torch.set_num_threads(1)
linear = PackedLinear(torch.ones(64, 64), None)
linear(torch.ones(16, 64))
before = resident()
for tokens in range(17, 400):
    batch = pack_sequences([Sequence([1] * tokens)], torch.device("cpu"))
    linear(torch.ones(len(batch.token_ids) if sys.argv[1] == "packed" else tokens, 64))
print(resident() - before)
"""


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_a_request_holds_ends_with_it() -> None:
    """Also if it is ended twice."""
    memory = Memory()
    hold = Hold(memory, LIMIT)

    hold.take(arrays=3, answers=5)
    hold.keep(answers=11)
    before = dict(memory.bytes)
    hold.release()
    hold.release()

    assert before == {"bodies": 0, "arrays": 3, "answers": 11}
    assert set(memory.bytes.values()) == {0}


def test_all_kinds_of_all_requests_share_the_budget() -> None:
    """What does not fit is not held; what is there is counted beyond it."""
    memory = Memory()
    one, other = Hold(memory, LIMIT), Hold(memory, LIMIT)

    one.take(bodies=3 * SMALL_BYTES)
    other.take(arrays=2 * SMALL_BYTES, answers=2 * SMALL_BYTES)
    with pytest.raises(Refused, match="overloaded"):
        one.take(bodies=SMALL_BYTES, arrays=2 * SMALL_BYTES + 1)
    one.take(bodies=2 * SMALL_BYTES, arrays=SMALL_BYTES)
    refused = dict(one.bytes)
    one.keep(answers=5)

    assert refused == {"bodies": 2 * SMALL_BYTES, "arrays": SMALL_BYTES, "answers": 0}
    assert sum(memory.bytes.values()) == LIMIT + 5


def test_a_full_budget_lets_small_requests_in() -> None:
    """Small as a whole, not piece by piece."""
    memory = Memory()
    large, small = Hold(memory, LIMIT), Hold(memory, LIMIT)

    large.take(answers=LIMIT)
    small.take(bodies=SMALL_BYTES - 1)
    small.take(arrays=1)

    with pytest.raises(Refused, match="overloaded"):
        small.take(answers=1)


@pytest.mark.prove
@pytest.mark.parametrize(("rows", "most"), [("packed", 40 * MIB), ("any", 160 * MIB)])
def test_numbers_of_rows_that_never_repeat_take_bounded_memory(rows: str, most: int) -> None:
    """Packed they are few; and of any others the kernels are kept up to a number."""
    command = [sys.executable, "-c", GROWTH, rows]
    environment = os.environ | HEAP_ENV | KERNEL_CACHE_ENV

    said = subprocess.run(
        command, env=environment, cwd=Path.cwd(), capture_output=True, text=True, check=True
    )

    assert 0 < int(said.stdout) < most
