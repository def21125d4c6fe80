"""What Ray is told of the number of replicas."""

import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Ray warns of Ray's own age
    from ray.serve.config import AutoscalingConfig

    from service.fleet import bounds, policy
from service.cluster.progress import StartFailed
from service.settings import Settings

SCALED = Settings(min_replicas=2, max_replicas=7, downscale_delay_seconds=41)


def test_a_number_that_is_fixed_is_told_as_one() -> None:
    """Ray's own policy is nowhere."""
    assert bounds.replicas(Settings(replicas=3)) == {"num_replicas": 3}


def test_bounds_delays_and_our_policy_are_what_ray_gets() -> None:
    """As it reads them in its controller, where the policy comes out of the pickle."""
    (config,) = bounds.replicas(SCALED).values()

    assert (config.min_replicas, config.max_replicas, config.initial_replicas) == (2, 7, None)
    assert config.downscale_delay_s == 41 and config.upscale_delay_s < 10
    assert config.look_back_period_s == policy.STALE_SECONDS >= policy.WINDOW_SECONDS
    assert config.metrics_interval_s * 4 < policy.WINDOW_SECONDS
    pickled = config.policy.get_serialized_policy_def()
    found = pickle.loads(pickled)
    assert found.__name__ == "scale" and found is not policy.scale
    assert found.__globals__["HIGH"] == policy.HIGH


def said(scales: Any, *options: str) -> Any:
    """Ray's deployment as a Serve configuration made it."""
    return SimpleNamespace(autoscaling_config=scales, user_configured_option_names=set(options))


@pytest.mark.parametrize(
    ("settings", "config", "line"),
    [
        (
            Settings(),
            said(AutoscalingConfig(max_replicas=3), "autoscaling_config"),
            "not autoscaling_config but min_replicas and max_replicas in args",
        ),
        (
            SCALED,
            said(AutoscalingConfig(max_replicas=3), "autoscaling_config"),
            "max_replicas: leave autoscaling_config out of the deployment",
        ),
        (SCALED, said(None), "max_replicas: leave autoscaling_config out of the deployment"),
        (
            SCALED,
            said(bounds.automatic(SCALED), "num_replicas"),
            "max_replicas: leave num_replicas out of the deployment",
        ),
    ],
    ids=["without our policy", "before our policy", "switched off", "ignored"],
)
def test_a_file_that_says_it_twice_is_refused(settings: Settings, config: Any, line: str) -> None:
    """Ray would let the deployment's own go first, or ignore it, without a word."""
    with pytest.raises(StartFailed, match=f"^{line}$"):
        bounds.check(settings, config)


def test_what_is_said_once_is_taken() -> None:
    """In args alone, or as the deployment's number."""
    bounds.check(SCALED, said(bounds.automatic(SCALED), "autoscaling_config"))
    bounds.check(Settings(), said(None, "num_replicas"))


@pytest.mark.parametrize(
    ("settings", "world", "counted"),
    [(Settings(), 5, 5), (Settings(replicas=3), None, 3), (SCALED, 1, 7), (SCALED, None, 7)],
)
def test_room_is_held_for_the_most_there_may_be(
    settings: Settings, world: int | None, counted: int
) -> None:
    """What Ray says of the number where it is fixed; the bound where it scales."""
    assert bounds.counted(settings, world).most == counted
