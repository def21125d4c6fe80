"""service/engine/machine.py"""

from pathlib import Path
from typing import Any

import pytest
import torch

from service.engine import machine
from service.settings import Settings


@pytest.mark.parametrize(
    ("dtype", "quick", "slow"),
    [
        ("float32", {torch.float32}, False),
        ("bfloat16", {torch.float32}, True),
        ("bfloat16", {torch.float32, torch.bfloat16}, False),
        ("float16", {torch.float32, torch.bfloat16}, True),
    ],
)
def test_a_number_format_that_is_slow_on_this_processor_is_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: Any,
    quick: set[torch.dtype],
    slow: bool,
) -> None:
    """In one line at the start, which says that float32 is faster; it is served all the same."""
    monkeypatch.setattr(machine, "QUICK", quick)

    assert machine.precision(Settings(device="cpu", dtype=dtype))[1] is getattr(torch, dtype)

    lines = [f"{dtype} is likely slower than float32 on this processor"] if slow else []
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == lines


def test_bfloat16_is_quick_on_a_processor_with_amx() -> None:
    """By the processor's own list of what it can."""
    listed = Path("/proc/cpuinfo")
    able = listed.exists() and "amx_tile" in listed.read_text()

    assert (torch.bfloat16 in machine.QUICK) is able
