"""What is counted, and when."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import Metrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a replica by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_request_is_counted_once_whichever_way_it_ends() -> None:
    """With its code when it was answered, as 499 when it was not."""
    metrics = Metrics("r")
    with metrics.request("/v1/encode") as seen:
        seen.code, seen.input = 200, "text"
    with pytest.raises(ConnectionError), metrics.request("/v1/encode"):
        raise ConnectionError

    counted = {key: value for key, value in samples(metrics).items() if "requests" in key[0]}

    labels = (("replica", "r"), ("route", "/v1/encode"))
    assert counted == {
        ("headlight_requests_total", (("code", "200"), ("input", "text"), *labels)): 1,
        ("headlight_requests_total", (("code", "499"), ("input", "none"), *labels)): 1,
    }


def test_every_series_carries_the_replica() -> None:
    """So that a page joined from several replicas never holds a series twice."""
    metrics = Metrics("r")
    metrics.encoded(5)
    metrics.watch("ready", "x", lambda: 1)
    metrics.describe(model="m", weights="w", dtype="d", device="c", numerics="n")

    assert all(dict(labels)["replica"] == "r" for _, labels in samples(metrics))
