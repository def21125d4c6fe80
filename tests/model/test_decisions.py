"""Temperatures by kind and number of options, as the laya library applies them."""

import math
from typing import Any

import pytest
from laya.common import QTYPES, clamp_temperature, temp_bucket, temperature_rejected

from model import decisions
from model.decisions import KINDS, Temperatures

STORED: list[Any] = [
    *(1.5, 0.1, 9, 0.5, 5, 0, -1, True, False, None, "2", "no", [1], math.nan, math.inf, -math.inf)
]


def test_kinds_are_in_the_librarys_order() -> None:
    """That of its type embedding."""
    assert {kind: place for place, kind in enumerate(KINDS)} == QTYPES


@pytest.mark.parametrize("stored", STORED, ids=repr)
def test_what_is_applied_and_named_is_what_the_library_applies_and_names(stored: Any) -> None:
    """Of numbers, and of what is none."""
    applied = decisions.clamp_temperature(stored)
    replaced = list(Temperatures((1.0, 1.0, 1.0), {"noul:2": stored}).list_replaced())

    assert applied == clamp_temperature(stored)
    assert bool(replaced) == temperature_rejected(stored, applied)
    assert all(one == ("noul:2", stored, applied) for one in replaced)


def test_a_number_too_large_for_a_float_is_none() -> None:
    """The library does not start with it."""
    assert decisions.clamp_temperature(10**400) == 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [1, 2, 3, 5, 6, 10, 11, 255])
def test_a_temperature_goes_by_kind_and_number_of_options(kind: Any, options: int) -> None:
    """Those of the library's bucket where one is stored, else that of the kind."""
    bucket = temp_bucket(QTYPES[kind], options)
    by_kind = (1.25, 1.5, 1.75)

    assert Temperatures(by_kind, {bucket: 2.5}).of(kind, options) == 2.5
    assert Temperatures(by_kind, {}).of(kind, options) == by_kind[QTYPES[kind]]
