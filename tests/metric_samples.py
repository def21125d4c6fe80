"""A page of metrics, read as Prometheus reads it."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families


def samples(page: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Each sample of a page: its full name, its labels, its value."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value
