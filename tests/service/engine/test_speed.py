"""What is believed of the lanes' speed."""

from service.engine.speed import DOUBT, PROBE, LoneSpeed

LANES = 2


def test_a_long_sequence_says_nothing_of_a_short_ones_cores() -> None:
    """It has more tokens a second on any of them; only its like are compared."""
    speed = LoneSpeed(LANES)
    for _ in range(2):
        speed.record(1, 500, 1.0)
        speed.record(1, 7, 2.0)
        speed.record(LANES, 7, 1.0)

    assert [speed.cores(7) for _ in range(PROBE)].count(LANES) == PROBE - 1


def test_the_first_run_on_so_many_cores_says_nothing() -> None:
    """It makes their matrix kernels too; were it believed, one core would seem faster for long."""
    speed = LoneSpeed(LANES)
    for cores, seconds in [(LANES, 1.0), (LANES, 0.001), (1, 1.0), (1, 0.002)]:
        speed.record(cores, 7, seconds)

    assert [speed.cores(7) for _ in range(DOUBT)] == [LANES] * DOUBT


def test_one_core_is_soon_tried_where_nothing_is_known_of_it() -> None:
    """Else a neighbour on a core would slow the first hundred lone sequences twentyfold."""
    speed, seen = LoneSpeed(LANES), list[int]()
    for _ in range(3 * DOUBT):
        seen.append(speed.cores(7))
        speed.record(seen[-1], 7, 0.01 if seen[-1] == 1 else 0.2)

    assert seen[: 2 * DOUBT].count(1) == 2
    assert seen[2 * DOUBT :].count(1) == DOUBT - 1


def test_all_cores_are_soon_tried_again_where_one_was_faster() -> None:
    """What made them slow has most often passed; a lone sequence does not wait for it for long."""
    speed = LoneSpeed(LANES)
    for cores in (1, LANES, 1, LANES):
        speed.record(cores, 7, float(cores))

    assert [speed.cores(7) for _ in range(DOUBT)] == [1] * (DOUBT - 1) + [LANES]
