"""Garbage is collected while nothing is asked."""

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from service.door import under_way
from service.door.under_way import UnderWay


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No collection but those of the requests under way, which are not waited for."""
    monkeypatch.setattr(under_way, "GARBAGE_SECONDS", -1)
    gc.freeze()  # else each collection goes through all that was imported
    gc.disable()
    yield
    gc.enable()


class Asked:
    """A request whose time is never up."""

    until, overdue = math.inf, False


def request() -> Any:
    """One that is under way."""
    return Asked()


async def test_garbage_is_collected_once_no_request_is_under_way() -> None:
    """Not while another still is."""
    both, first, last = UnderWay(), request(), request()
    both.add(first)
    both.add(last)
    garbage = weakref.ref(Cycle())

    both.forget(first)
    assert garbage()

    both.forget(last)
    assert not garbage()


async def test_it_is_not_collected_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come one after another do not wait for it each time."""
    monkeypatch.setattr(under_way, "GARBAGE_SECONDS", 10)
    one, asked = UnderWay(), request()
    one.add(asked)
    garbage = weakref.ref(Cycle())

    one.forget(asked)

    assert garbage()


async def test_a_replica_that_never_rests_collects_it_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would grow for ever."""
    monkeypatch.setattr(under_way, "MOST_GARBAGE_SECONDS", -1)
    monkeypatch.setattr(under_way, "YOUNG_OBJECTS", 0)
    one, asked, garbage = UnderWay(), request(), weakref.ref(Cycle())

    one.add(asked)

    assert not garbage()
    one.forget(asked)


@pytest.mark.parametrize(("most", "found"), [(60_000, True), (0, False)])
async def test_a_look_collects_what_is_young_where_that_is_little(
    monkeypatch: pytest.MonkeyPatch, most: int, found: bool
) -> None:
    """Else the look would be one of those stops of the loop that it is to prevent."""
    monkeypatch.setattr(under_way, "YOUNG_OBJECTS", most)
    one, asked, young = UnderWay(), request(), weakref.ref(Cycle())

    one.add(asked)

    assert (young() is None) == found
    one.forget(asked)
