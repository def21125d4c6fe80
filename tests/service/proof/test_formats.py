"""service/proof/formats.py"""

from dataclasses import replace

import pytest
import torch

from model import kernels
from model.kernels import PLAIN, PlainLinear
from service.engine import speed
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


class Busy:
    """A clock by which all takes thirty times as long until a fifth of a second has passed."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        """Let a thousandth pass with each look."""
        self.seconds += 0.03 if self.seconds < 0.2 else 0.001
        return self.seconds


def test_a_busy_moment_is_none_of_one_format_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else float32, measured first, would seem to be slower than anything."""
    monkeypatch.setattr(speed, "time", Busy())

    config = read_model_sizes(locate_model(BUNDLED_MODEL))
    assert 0.9 < formats.compare_speeds(config, torch.float64) < 1.1
