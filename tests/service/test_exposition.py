"""One page from the metrics of several replicas."""

from prometheus_client.parser import text_string_to_metric_families

from service import exposition
from service.metrics import Metrics


def replica(name: str, requests: int) -> bytes:
    """The metrics of a replica that answered some requests."""
    metrics = Metrics(name)
    for _ in range(requests):
        with metrics.request("/live"):
            pass
    return metrics.render()


def test_samples_of_a_family_stand_together_under_one_header() -> None:
    """The format allows a family once; a scraper may refuse the page otherwise."""
    page = exposition.join([replica("a", 2), replica("b", 3)], incomplete=False).decode()

    headers = [line for line in page.splitlines() if line.startswith("# TYPE ")]
    assert len(headers) == len(set(headers))
    families = list(text_string_to_metric_families(page))
    assert len({family.name for family in families}) == len(families)


def test_no_replicas_sample_is_lost_or_changed() -> None:
    """Every line of each replica is on the page, as it was."""
    texts = [replica("a", 2), replica("b", 3)]

    page = exposition.join(texts, incomplete=False).splitlines()

    assert {line for text in texts for line in text.splitlines()} <= set(page)


def test_a_page_says_whether_it_is_whole() -> None:
    """A replica that did not answer shows as a number, not as a failed scrape."""
    assert exposition.join([], incomplete=False).endswith(b"headlight_scrape_incomplete 0\n")
    assert exposition.join([], incomplete=True).endswith(b"headlight_scrape_incomplete 1\n")
