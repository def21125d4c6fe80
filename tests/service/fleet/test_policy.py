"""How many replicas there should be."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.fleet import policy
from service.fleet.policy import BUSY, DRAIN_SECONDS, HIGH, LOOP, LOW, STALE_SECONDS, WAITING

NOW = 1_700_000_000.0
MOST = 17

loads = st.floats(0, 30)
unknown_loads = st.none() | loads


def context(
    busy: Sequence[Sequence[float]],
    waiting: Sequence[float],
    *,
    target: int,
    loop: Sequence[Sequence[float]] = (),
    ages: Sequence[float] = (),
    least: int = 1,
    most: int = MOST,
    state: dict[str, Any] | None = None,
) -> Any:
    """What Ray says of replicas that reported every two seconds, the last ones so long ago.

    Without another `loop`, what the event loop does is a fifth of what the lanes do.
    """
    names = range(len(busy))
    loop = loop or [[share / 5 for share in shares] for shares in busy]
    ages = ages or [0.0] * len(busy)

    def series(values: Sequence[float], age: float) -> list[SimpleNamespace]:
        times = [NOW - age - 2 * back for back in reversed(range(len(values)))]
        return [SimpleNamespace(timestamp=t, value=v) for t, v in zip(times, values, strict=True)]

    return SimpleNamespace(
        capacity_adjusted_min_replicas=least,
        capacity_adjusted_max_replicas=most,
        current_time=NOW,
        running_replicas=list(names),
        target_num_replicas=target,
        policy_state=state or {},
        raw_metrics={
            BUSY: {name: series(busy[name], ages[name]) for name in names},
            LOOP: {name: series(loop[name], ages[name]) for name in names},
            WAITING: {
                name: series([waiting[name]] * len(busy[name]), ages[name]) for name in names
            },
        },
    )


ROWS = {
    "idle, one": (context([[0.0]], [0.0], target=1), 1),
    "half busy, one": (context([[0.5] * 5], [0.02], target=1), 1),
    "too busy, one": (context([[0.8] * 5], [0.02], target=1), 2),
    "two, between the bounds": (context([[0.6] * 5] * 2, [0.01] * 2, target=2), 2),
    "two that one would do for": (context([[0.2] * 5] * 2, [0.0] * 2, target=2), 1),
    "two that one would be too busy with": (context([[0.3] * 5] * 2, [0.0] * 2, target=2), 2),
    "a crowd: busy all the time, and 13 s wait": (context([[1.0] * 5], [13.0], target=1), 4),
    "the crowd at its bound": (context([[1.0] * 5], [500.0], target=1), MOST),
    "above a bound that was lowered": (context([[0.6] * 5] * 7, [0.0] * 7, target=7, most=3), 3),
    "below a bound that was raised": (context([[0.0]], [0.0], target=1, least=3), 3),
    "a bound below one": (context([[0.0]], [0.0], target=1, least=0), 1),
    "a batch longer than a report": (context([[0.0, 0.0, 2.5, 0.0, 0.0]], [0.0], target=1), 1),
    "one that has just started": (context([[0.2] * 5, []], [0.0, 0.0], target=2), 2),
    "short texts: the event loop too busy": (
        context([[0.2] * 5], [0.02], loop=[[0.9] * 5], target=1),
        2,
    ),
    "the event loop of two that one would do for": (
        context([[0.1] * 5] * 2, [0.0] * 2, loop=[[0.2] * 5] * 2, target=2),
        1,
    ),
    "the event loop of two that one would be too busy with": (
        context([[0.1] * 5] * 2, [0.0] * 2, loop=[[0.4] * 5] * 2, target=2),
        2,
    ),
    "lanes and event loop each half busy": (
        context([[0.5] * 5], [0.0], loop=[[0.5] * 5], target=1),
        1,
    ),
    "an event loop that did more than its time": (
        context([[0.1] * 5], [0.0], loop=[[1.3] * 5], target=1),
        2,
    ),
    "an event loop that says nothing": (
        context([[0.1] * 5] * 2, [0.0] * 2, loop=[[], []], target=2),
        2,
    ),
    "more to come than run, and no work": (context([[0.2] * 5], [0.0], target=3), 1),
    "more to come than run, and work for them": (context([[1.0] * 5], [13.0], target=3), 4),
    "twelve, one has no node, all idle": (context([[0.0] * 5] * 11, [0.0] * 11, target=12), 1),
    "twelve, one has no node, work for six": (
        context([[0.27] * 5] * 11, [0.0] * 11, target=12),
        6,
    ),
    "one has no node, one has just started": (
        context([[0.0] * 5] * 10 + [[]], [0.0] * 11, target=12),
        12,
    ),
    "one that is silent": (context([[0.1] * 5] * 2, [0.0] * 2, target=2, ages=[0, 21]), 2),
    "one silent, one too busy": (context([[0.9] * 5] * 2, [7.0] * 2, target=2, ages=[0, 21]), 3),
    "a clock a minute ahead": (context([[0.1] * 5] * 2, [0.0] * 2, target=2, ages=[0, -60]), 1),
    "nobody reports": (context([[], []], [0.0, 0.0], target=5), 5),
    "nobody runs": (context([], [], target=3), 3),
    "not a number": (context([[math.nan] * 5], [0.0], target=2), 2),
    "infinity": (context([[0.5] * 5], [math.inf], target=2), 2),
    "below nothing": (context([[-1.0] * 5], [-1.0], target=2), 2),
    "one number among others that are none": (
        context([[math.nan, 0.9, math.nan, 0.9]], [0.0], target=1),
        2,
    ),
}


@pytest.mark.parametrize(("said", "number"), ROWS.values(), ids=ROWS.keys())
def test_the_number_follows_the_work(said: Any, number: int) -> None:
    """What Ray would be told, row by row."""
    assert policy.scale(said)[0] == number


def test_what_is_known_of_no_metric_keeps_what_there_is() -> None:
    """As after the controller's own restart."""
    said = context([[0.9] * 5], [3.0], target=3)
    said.raw_metrics = None

    assert policy.scale(said)[0] == 3


def test_an_idle_moment_at_the_delays_end_does_not_end_all_replicas() -> None:
    """Ray takes the last answer; ours is the most since fewer were wanted, of this target."""
    busy = context([[0.24] * 5] * 7, [0.0] * 7, target=7)
    first, state = policy.scale(busy)
    idle, state = policy.scale(context([[0.0] * 5] * 7, [0.0] * 7, target=7, state=state))
    after, _ = policy.scale(context([[0.0] * 5] * 4, [0.0] * 4, target=4, state=state))

    assert (first, idle, after) == (4, 4, 1)


def test_work_that_came_back_ends_the_delay() -> None:
    """What was wanted before it says nothing of what is wanted after."""
    _, state = policy.scale(context([[0.3] * 5] * 7, [0.0] * 7, target=7))
    _, none = policy.scale(context([[0.6] * 5] * 7, [0.0] * 7, target=7, state=state))

    assert state and not none


@given(st.lists(unknown_loads, max_size=9), st.integers(0, 20), st.integers(1, 9))
def test_the_number_lies_within_the_bounds(
    known: list[float | None], target: int, least: int
) -> None:
    """Whatever is reported; and there is always one."""
    assert least <= policy.desired_replicas(target, known, least, MOST) <= MOST
    assert policy.desired_replicas(target, known, 0, MOST) >= 1


@given(st.lists(loads, min_size=1, max_size=9), st.integers(1, 9), st.data())
def test_more_work_never_asks_for_fewer(
    known: list[float], target: int, data: st.DataObject
) -> None:
    """One replica's load grows, all else stays."""
    more = list(known)
    more[data.draw(st.integers(0, len(known) - 1))] += data.draw(loads)

    before, after = (policy.desired_replicas(target, each, 1, MOST) for each in (known, more))

    assert after >= before


@given(
    st.floats(0.01, 40),
    st.lists(st.floats(1, HIGH / LOW - 0.001), min_size=2, max_size=13),
    st.integers(1, 20),
)
def test_a_load_that_wavers_by_half_does_not_flap(
    least: float, factors: list[float], target: int
) -> None:
    """After the first change, whichever way, none is ever taken back."""
    numbers = [target]
    for factor in factors:
        number = numbers[-1]
        numbers.append(policy.desired_replicas(number, [least * factor / number] * number, 1, 999))
    later = numbers[1:]

    assert later in (sorted(later), sorted(later, reverse=True))


@given(st.floats(0, 40))
@example(3.5)
def test_what_a_replica_leaves_behind_does_not_call_it_back(total: float) -> None:
    """The number that is left is no busier than LOW, well below HIGH, where one more is wanted.

    A total on a boundary may round to either side of it each time that it is shared out anew.
    """
    left = policy.desired_replicas(99, [total / 99] * 99, 1, 99)

    assert total / left <= LOW * (1 + 1e-9) or left == 99
    assert policy.desired_replicas(left, [total / left] * left, 1, 99) in (left, left - 1)
    assert LOW < HIGH < 1


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=9))
def test_no_report_makes_anything_but_a_load(values: list[float]) -> None:
    """From 0 up and finite, or unknown."""
    said = context([values], [values[-1]], target=1)

    (load,) = policy.replica_loads(said.raw_metrics, said.running_replicas, NOW)

    assert load is None or 0 <= load <= 1 + policy.LONGEST_WAIT_SECONDS / DRAIN_SECONDS


def test_a_report_counts_until_it_is_stale() -> None:
    """By the time that Ray gives; ten reports may be lost before."""
    young, old = (
        context([[0.9] * 5], [0.0], target=1, ages=[age])
        for age in (STALE_SECONDS, STALE_SECONDS + 0.1)
    )

    assert (policy.scale(young)[0], policy.scale(old)[0]) == (2, 1)
