"""What requests hold together stays within the budget."""

import pytest

from service.memory import SMALL_BYTES, Memory, NoRoom

LIMIT = 7 * SMALL_BYTES


def test_what_a_request_holds_ends_with_it() -> None:
    """Whichever way it ends."""
    memory = Memory()

    with pytest.raises(KeyError), memory.hold(LIMIT) as hold:
        hold.take(arrays=3, answers=5)
        hold.keep("answers", 11)
        before = dict(memory.bytes)
        raise KeyError

    assert before == {"bodies": 0, "arrays": 3, "answers": 11}
    assert set(memory.bytes.values()) == {0}


def test_all_kinds_of_all_requests_share_the_budget() -> None:
    """What does not fit is not held; what is there is counted beyond it."""
    memory = Memory()

    with memory.hold(LIMIT) as one, memory.hold(LIMIT) as other:
        one.take(bodies=3 * SMALL_BYTES)
        other.take(arrays=2 * SMALL_BYTES, answers=2 * SMALL_BYTES)
        with pytest.raises(NoRoom):
            one.take(arrays=1)
        refused = dict(one.bytes)
        one.keep("answers", 5)

        assert refused == {"bodies": 3 * SMALL_BYTES, "arrays": 0, "answers": 0}
        assert sum(memory.bytes.values()) == LIMIT + 5


def test_a_full_budget_lets_small_requests_in() -> None:
    """Small as a whole, not piece by piece."""
    memory = Memory()

    with memory.hold(LIMIT) as large, memory.hold(LIMIT) as small:
        large.take(answers=LIMIT)
        small.take(bodies=SMALL_BYTES - 1)
        small.take(arrays=1)

        with pytest.raises(NoRoom):
            small.take(answers=1)
