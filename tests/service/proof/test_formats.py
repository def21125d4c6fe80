"""service/proof/formats.py"""

import time
from dataclasses import replace

import pytest
import torch

from model import kernels
from model.kernels import PLAIN, PlainLinear
from service.files.loading import read_model_sizes
from service.files.weights import BUNDLED_MODEL, locate_model
from service.proof import formats


class Slow(PlainLinear):
    """A linear that takes far longer than any other."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            super().__call__(x)
        return super().__call__(x)


def test_a_format_whose_products_take_longer_is_measured_to_be_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On this processor, whatever it is; and the number of cores stays as it was."""
    slow = replace(PLAIN, linear=Slow)
    monkeypatch.setattr(formats, "SECONDS", 0.02)
    monkeypatch.setattr(
        kernels, "choose_kernels", lambda _, dtype, *__: PLAIN if dtype == torch.float32 else slow
    )
    cores = torch.get_num_threads()

    config = read_model_sizes(locate_model(BUNDLED_MODEL))
    assert formats.compare_speeds(config, torch.float64) < 0.5
    assert torch.get_num_threads() == cores


class Interrupted(PlainLinear):
    """A linear that another process keeps from its core for a while."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return super().__call__(x)


def test_a_busy_machine_makes_no_format_seem_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though float32, measured first, is kept waiting for far longer than it computes."""
    kinds = iter([replace(PLAIN, linear=Interrupted), PLAIN])
    monkeypatch.setattr(kernels, "choose_kernels", lambda *_: next(kinds))

    config = read_model_sizes(locate_model(BUNDLED_MODEL))
    assert 0.5 < formats.compare_speeds(config, torch.float32) < 2
