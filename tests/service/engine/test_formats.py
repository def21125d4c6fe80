"""service/engine/formats.py"""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from model import kernels
from model.kernels import PLAIN, PlainLinear
from model.loading.checkpoint import Model
from service.engine import formats
from service.engine.loading import load_model
from service.engine.weights import BUNDLED_MODEL, locate_model
from service.settings import Settings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    """The bundled one."""
    return load_model(locate_model(BUNDLED_MODEL), CPU, torch.float32, PLAIN)


class Slow(PlainLinear):
    """A linear that takes far longer than any other."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            super().__call__(x)
        return super().__call__(x)


def test_a_format_whose_products_take_longer_is_measured_to_be_slower(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this processor, whatever it is; and the number of cores stays as it was."""
    slow = replace(PLAIN, linear=Slow)
    monkeypatch.setattr(formats, "SECONDS", 0.02)
    monkeypatch.setattr(
        kernels, "choose_kernels", lambda _, dtype, *__: PLAIN if dtype == torch.float32 else slow
    )
    cores = torch.get_num_threads()

    assert formats.compare_speeds(model.encoder.layers[0], torch.float64) < 0.5
    assert torch.get_num_threads() == cores


@pytest.mark.parametrize(
    ("dtype", "half", "ratio", "said"),
    [
        ("auto", True, 2.44, "bfloat16 would be about 2.4 times as fast here: --dtype bfloat16"),
        ("auto", True, 1.1, None),
        ("auto", False, 2.44, None),
        ("float32", True, 2.44, None),
        ("bfloat16", True, 2.44, None),
        ("bfloat16", False, 0.031, "bfloat16 is 0.03 times as fast as float32 on this processor"),
        ("float16", False, 0.2, "float16 is 0.20 times as fast as float32 on this processor"),
    ],
)
def test_a_line_says_which_format_would_be_faster(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: Any,
    half: bool,
    ratio: float,
    said: str | None,
) -> None:
    """By what was measured: bfloat16 where it is worth it, float32 where another was asked for."""
    way = replace(PLAIN, half=half)
    monkeypatch.setattr(kernels, "choose_kernels", lambda *_: way)
    monkeypatch.setattr(formats, "compare_speeds", lambda *_: ratio)
    caplog.set_level(logging.INFO)

    formats.tell_speed(model, Settings(dtype=dtype))

    lines = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert lines == ([said] if said else [])
