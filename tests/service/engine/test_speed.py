"""What is believed of the lanes' speed."""

from service.engine.speed import PROBE, LoneSpeed

LANES = 2


def test_a_long_sequence_says_nothing_of_a_short_ones_cores() -> None:
    """It has more tokens a second on any of them; only its like are compared."""
    speed = LoneSpeed(LANES)
    speed.record(1, 500, 1.0)
    speed.record(LANES, 7, 1.0)

    assert [speed.cores(7) for _ in range(PROBE)].count(LANES) == PROBE - 1
