"""What is believed of the lanes' speed."""

from service.engine.speed import DOUBTFUL_PROBES, PROBE_EVERY, LoneCores

LANES = 2


def test_a_long_sequence_says_nothing_of_a_short_ones_cores() -> None:
    """It has more tokens a second on any of them; only its like are compared."""
    speed = LoneCores(LANES)
    for _ in range(2):
        speed.record(1, 500, 1.0)
        speed.record(1, 7, 2.0)
        speed.record(LANES, 7, 1.0)

    assert [speed.choose_cores(7) for _ in range(PROBE_EVERY)].count(LANES) == PROBE_EVERY - 1


def test_the_first_run_on_so_many_cores_says_nothing() -> None:
    """It makes their matrix kernels too; were it believed, one core would seem faster for long."""
    speed = LoneCores(LANES)
    for cores, seconds in [(LANES, 1.0), (LANES, 0.001), (1, 1.0), (1, 0.002)]:
        speed.record(cores, 7, seconds)

    assert [speed.choose_cores(7) for _ in range(DOUBTFUL_PROBES)] == [LANES] * DOUBTFUL_PROBES


def test_one_core_is_soon_tried_where_nothing_is_known_of_it() -> None:
    """Else a neighbour on a core would slow the first hundred lone sequences twentyfold."""
    speed, seen = LoneCores(LANES), list[int]()
    for _ in range(3 * DOUBTFUL_PROBES):
        seen.append(speed.choose_cores(7))
        speed.record(seen[-1], 7, 0.01 if seen[-1] == 1 else 0.2)

    assert seen[: 2 * DOUBTFUL_PROBES].count(1) == 2
    assert seen[2 * DOUBTFUL_PROBES :].count(1) == DOUBTFUL_PROBES - 1


def test_all_cores_are_soon_tried_again_where_one_was_faster() -> None:
    """What made them slow has most often passed; a lone sequence does not wait for it for long."""
    speed = LoneCores(LANES)
    for cores in (1, LANES, 1, LANES):
        speed.record(cores, 7, float(cores))

    assert [speed.choose_cores(7) for _ in range(DOUBTFUL_PROBES)] == [1] * (
        DOUBTFUL_PROBES - 1
    ) + [LANES]
