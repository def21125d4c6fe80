"""What is believed of the lanes' speed."""

from service.engine.speed import DOUBT, PROBE, LoneSpeed

LANES = 2


def test_a_long_sequence_says_nothing_of_a_short_ones_cores() -> None:
    """It has more tokens a second on any of them; only its like are compared."""
    speed = LoneSpeed(LANES)
    speed.record(1, 500, 1.0)
    speed.record(LANES, 7, 1.0)

    assert [speed.cores(7) for _ in range(PROBE)].count(LANES) == PROBE - 1


def test_the_first_run_on_so_many_cores_says_nothing() -> None:
    """It makes their matrix kernels too; were it believed, one core would seem faster for long."""
    speed = LoneSpeed(LANES)
    for cores, seconds in [(LANES, 1.0), (LANES, 0.001), (1, 1.0), (1, 0.002)]:
        speed.record(cores, 7, seconds)

    assert [speed.cores(7) for _ in range(DOUBT)] == [LANES] * DOUBT


def test_all_cores_are_soon_tried_again_where_one_was_faster() -> None:
    """What made them slow has most often passed; a lone sequence does not wait for it for long."""
    speed = LoneSpeed(LANES)
    for cores in (1, LANES, 1, LANES):
        speed.record(cores, 7, float(cores))

    assert [speed.cores(7) for _ in range(DOUBT)] == [1] * (DOUBT - 1) + [LANES]
