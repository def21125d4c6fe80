"""One page from the metrics of several replicas."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service.observe import scrape
from service.observe.metrics import Metrics
from service.shapes.record import Record, TraceContext

Parse = Callable[[str], Any]

TRACE = "0af7651916cd43dd8448eb211c80319c"
FORMS = pytest.mark.parametrize(
    ("form", "parse"),
    [
        (False, text_string_to_metric_families),
        (True, openmetrics.text_string_to_metric_families),
    ],
    ids=["text", "openmetrics"],
)
OPENMETRICS = "application/openmetrics-text"


def replica(name: str, requests: int, form: bool = False) -> bytes:
    """The metrics of a replica that answered some requests."""
    metrics = Metrics(name, "m")
    for _ in range(requests):
        metrics.count_request(Record("/live", trace=TraceContext(TRACE, True, "", None)))
    return metrics.freeze(exemplars=form)()


@FORMS
def test_samples_of_a_family_stand_together_under_one_header(form: bool, parse: Parse) -> None:
    """The formats allow a family once; a scraper may refuse the page otherwise."""
    texts = [replica("a", 2, form), replica("b", 3, form)]

    page = scrape.join_pages(texts, False, form).decode()

    headers = [line for line in page.splitlines() if line.startswith("# TYPE ")]
    assert len(headers) == len(set(headers))
    families = list(parse(page))
    assert len({family.name for family in families}) == len(families)
    assert page.count("# EOF\n") == form and page.endswith("# EOF\n") == form


@FORMS
def test_no_replicas_sample_is_lost_or_changed(form: bool, parse: Parse) -> None:
    """Every line of each replica is on the page, as it was, and none is there twice."""
    texts = [replica("a", 2, form), replica("b", 3, form)]

    page = scrape.join_pages(texts, False, form).splitlines()

    assert {line for text in texts for line in text.splitlines()} <= set(page)
    assert len(page) == len(set(page))


def test_exemplars_reach_the_page_of_openmetrics() -> None:
    """They lead from a slow bucket to a trace of a request in it."""
    page = scrape.join_pages([replica("a", 1, True), replica("b", 1, True)], False, True).decode()

    found = [
        (sample.labels["replica"], sample.exemplar.labels)
        for family in openmetrics.text_string_to_metric_families(page)
        for sample in family.samples
        if sample.exemplar
    ]
    assert found == [("a", {"trace_id": TRACE}), ("b", {"trace_id": TRACE})]


def test_a_label_with_a_line_break_stays_one_sample() -> None:
    """A carriage return ends no line of these formats."""
    metrics = Metrics("r", 'a\rb\nc"d')
    metrics.publish_info("model_info", "x")

    page = scrape.join_pages([metrics.freeze()()], False).decode()

    assert [
        sample.labels["model"]
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "headlight_model_info"
    ] == ['a\rb\nc"d']


def test_a_page_says_how_many_replicas_there_should_be_where_that_is_known() -> None:
    """A number that is made up would be an alert."""
    known, unknown = scrape.join_pages([], False, expected=3), scrape.join_pages([], False)

    assert b"\nheadlight_replicas_expected 3\n" in known
    assert b"headlight_replicas_expected" not in unknown


def test_a_page_says_whether_it_is_whole() -> None:
    """A replica that did not answer shows as a number, not as a failed scrape."""
    assert scrape.join_pages([], incomplete=False).endswith(b"headlight_scrape_incomplete 0\n")
    assert scrape.join_pages([], incomplete=True).endswith(b"headlight_scrape_incomplete 1\n")


@pytest.mark.parametrize(
    ("accept", "given"),
    [
        (f"{OPENMETRICS};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2", OPENMETRICS),
        (OPENMETRICS.upper(), OPENMETRICS),
        ("text/plain", "text/plain"),
        ("*/*", "text/plain"),
        (";,;q==,\x7f", "text/plain"),
    ],
)
async def test_the_form_is_the_scrapers_choice(
    client: httpx.AsyncClient, accept: str, given: str
) -> None:
    """OpenMetrics for those that ask for it, Prometheus text for all others."""
    answer = await client.get("/metrics", headers={"accept": accept})

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(f"{given};")
    assert answer.headers["vary"] == "accept"
    assert answer.text.endswith("# EOF\n") == (given == OPENMETRICS)


async def test_one_replicas_page_has_the_names_of_all_replicas_page(
    client: httpx.AsyncClient,
) -> None:
    """But for what is of all; another scope is refused, and says which there are."""
    names = [
        {line.split("{")[0].split(" ")[0] for line in (await client.get(path)).text.splitlines()}
        for path in ("/metrics", "/metrics?scope=all", "/metrics?scope=replica")
    ]
    refused = await client.get("/metrics?scope=node")

    assert names[0] == names[1] and "headlight_ready" in names[0]
    assert names[0] - names[2] == {"headlight_replicas_expected"} and names[2] < names[0]
    assert refused.status_code == 422 and "all" in refused.text and "replica" in refused.text


async def test_prometheus_is_told_where_each_replica_is(client: httpx.AsyncClient) -> None:
    """As its http_sd_configs read it, with what to ask there."""
    answer = await client.get("/metrics/targets")

    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [
        {
            "targets": ["10.0.0.2:30000", "10.0.0.3:30000"],
            "labels": {"__metrics_path__": "/metrics", "__param_scope": "replica"},
        }
    ]
