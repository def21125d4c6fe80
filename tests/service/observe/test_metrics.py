"""What is counted, and when."""

import asyncio
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from service.api import ROUTES
from service.api.document import document
from service.api.open_inference.call import MODEL_PATH
from service.observe import families
from service.observe.metrics import Metrics
from service.pipeline.replica import Replica
from service.shapes.record import STAGES, Record
from service.tables import keys
from service.tables.settings import Settings
from tests.replica_internals import bound, slow_down, stalled

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

IDLE_SERIES = 420  # of a replica that was asked nothing, at most
MOST_SERIES = 1100  # of one whose every route has been asked for all that it takes
ASIDE = {"/docs", "/openapi.json"}  # routes that the document of the API leaves out
# (method, path, JSON body, status); refused for many reasons, or answered
TRAFFIC = [
    ("POST", "/v1/encode", {"inputs": ["a"]}, 200),
    ("POST", "/v1/encode", {"inputs": [{"token_ids": [101, 102]}]}, 200),
    ("POST", "/v1/encode", {"inputs": ["a", {"token_ids": [101, 102]}], "attention": {}}, 200),
    ("POST", "/v1/encode", {"inputs": ["a"], "attention": {"form": "stats"}}, 200),
    ("POST", "/v1/encode", {"inputs": [{"embeddings": [[0.5] * 384] * 3}]}, 200),
    ("POST", "/v1/encode", {"inputs": ["a"], "model": "other"}, 404),
    ("POST", "/v1/encode", {"inputs": [""]}, 422),
    ("POST", "/v1/encode", {"inputs": []}, 422),
    ("POST", "/v1/encode", {"input": ["a"]}, 422),
    ("POST", "/v1/encode", {"inputs": ["a " * 600]}, 422),
    ("POST", "/v1/encode?dry_run=true", {"inputs": ["a"]}, 200),
    ("POST", "/v1/encode?dry_run=2", {"inputs": ["a"]}, 422),
    ("POST", "/v1/explain", {"text": "a", "layer": 0}, 200),
    ("POST", "/v1/explain", {"text": "a", "layer": 9}, 422),
    ("POST", "/v1/attend", {"scores": [[1.0]], "value": [[1.0]]}, 200),
    ("GET", "/info", None, 200),
    ("GET", "/v1/encode", None, 405),
    ("BREW", "/v1/encode", None, 405),
    ("BREW", "/nothing", None, 404),
    *[("GET", f"/{number}?{number}", None, 404) for number in range(20)],
]

IDS, ROW = {"token_ids": [101, 102]}, {"embeddings": [[0.5] * 384]}
TENSOR = {"name": "input_ids", "shape": [1, 2], "datatype": "INT64", "data": [101, 102]}
EMBEDS = {"name": "inputs_embeds", "shape": [1, 1, 384], "datatype": "FP32", "data": [0.5] * 384}
INFERRED: list[Any] = [
    {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    {"inputs": [TENSOR]},
    {"inputs": [EMBEDS]},
]
TEXTS: list[Any] = [{"inputs": "a"}, {"inputs": ["a", "b"]}]
# for each route a body of every kind of inputs that it takes
EVERY_KIND: dict[str, list[Any]] = {
    "/v1/encode": [{"inputs": some} for some in (["a"], [IDS], [ROW], ["a", IDS])],
    "/v1/similarity": [
        {"left": one, "right": [other]} for one, other in (("a", "b"), (IDS, IDS), (ROW, ROW))
    ]
    + [{"left": "a", "right": [IDS]}],
    "/v1/maxsim": [
        {"query": one, "documents": [other]}
        for one, other in (("a", "b"), (IDS, IDS), (ROW, ROW), ("a", IDS))
    ],
    "/v1/highlight": [{"query": one, "documents": ["b"]} for one in ("a", IDS)],
    **dict.fromkeys(
        ("/v1/embeddings", "/embeddings"),
        [{"model": "all-MiniLM-L6-v2", "input": given} for given in ("a", [101, 102])],
    ),
    **dict.fromkeys(("/", "/embed", "/embed_all"), [*TEXTS, {"inputs": [101, 102]}]),
    "/embed_sparse": [*TEXTS, {"inputs": [101, 102]}],
    **dict.fromkeys((f"{MODEL_PATH}/infer", f"{MODEL_PATH}/versions/{{version}}/infer"), INFERRED),
}
EVERYTHING = {  # a route of one kind of inputs is asked its examples
    row.path: EVERY_KIND.get(row.path) or [example.value for example in row.examples]
    for row in ROUTES
    if row.method == "post" and row.when is None
}


def read(page: str) -> Samples:
    """Every sample of a page by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def samples(metrics: Metrics) -> Samples:
    """Every sample of a replica by name and labels."""
    return read(metrics.freeze()().decode())


def counted(found: Samples, name: str, label: str) -> Counter[str]:
    """The sums of a family by one of its labels."""
    sums: Counter[str] = Counter()
    for (sample, labels), value in found.items():
        if sample == f"headlight_{name}":
            sums[dict(labels).get(label, "")] += int(value)
    return sums


def total(found: Samples, name: str) -> int:
    """The sum of a family."""
    return counted(found, name, "replica").total()


def asked(found: Samples, least: int = 0) -> set[tuple[str, str]]:
    """The routes and inputs of which requests are counted, or so many were."""
    return {
        (dict(labels)["route"], dict(labels)["input"])
        for (name, labels), value in found.items()
        if name == "headlight_requests_total" and value >= least
    }


async def page(client: httpx.AsyncClient) -> Samples:
    """What a scraper sees now."""
    return read((await client.get("/metrics")).text)


def test_a_request_is_counted_once_whichever_way_it_ends() -> None:
    """With its code when it was answered, as 499 when it was not."""
    metrics = Metrics("r", "m")
    metrics.count_request(Record("/v1/encode", input="text", code=200))
    metrics.count_request(Record("/v1/encode"))

    found = {k: value for k, value in samples(metrics).items() if "requests_total" in k[0]}

    labels = (("model", "m"), ("replica", "r"), ("route", "/v1/encode"))
    assert found == {
        ("headlight_requests_total", (("code", "200"), ("input", "text"), *labels)): 1,
        ("headlight_requests_total", (("code", "499"), ("input", "none"), *labels)): 1,
    }


@pytest.mark.parametrize("exemplars", [False, True])
def test_a_page_that_was_made_before_shows_what_came_since(exemplars: bool) -> None:
    """Requests, and what has nothing to do with any."""
    metrics = Metrics("r", "m")
    metrics.publish_routes({"/v1/heads": families.NO_INPUT})
    before = metrics.freeze(exemplars=exemplars)()
    labels = b'code="200",input="none",model="m",replica="r",route="/v1/heads"'
    count = b"headlight_requests_total{%b} " % labels
    assert count + b"0.0" in before
    metrics.count_request(Record("/v1/heads", code=200))
    metrics.count_tokens(5)
    after = metrics.freeze(exemplars=exemplars)()
    metrics.publish_routes({"/decode": families.NO_INPUT})

    assert b'tokens_total{model="m",replica="r"} 5.0' in after
    assert b'route="/decode"' in metrics.freeze(exemplars=exemplars)()
    assert count + b"1.0" in after
    assert after.count(b"# EOF") == exemplars


def test_every_series_carries_the_replica() -> None:
    """So that a page joined from several replicas never holds a series twice."""
    metrics = Metrics("r", "m")
    metrics.count_tokens(5)
    metrics.add_gauge("ready", "x", lambda: 1)
    metrics.publish_info("model_info", "x", model="m")

    assert all(dict(labels)["replica"] == "r" for _, labels in samples(metrics))


def test_every_value_that_an_alert_asks_for_is_there_before_the_first_request() -> None:
    """A rate needs the zero before the one: an alert must not miss the first fault."""
    metrics = Metrics("r", "m")
    metrics.publish_routes({"/v1/encode": families.INPUTS, "/v1/heads": families.NO_INPUT})

    found = samples(metrics)

    closed = {
        ("stage_duration_seconds_count", "stage"): set(STAGES),
        ("shed_total", "reason"): set(families.SHED_REASONS),
        ("cancelled_total", "stage"): {"queue", "forward"},
        ("accelerator_errors_total", "kind"): {"oom", "other"},
        ("requests_total", "route"): {"/v1/encode", "/v1/heads"},
        ("requests_total", "input"): set(families.INPUTS),
        ("requests_total", "code"): {"200", "429", "500", "504"},
    }
    assert {key: set(counted(found, *key)) for key in closed} == closed
    names = ("nonfinite_outputs", "canary_runs", "canary_failures", "tokens", "readers_cut_off")
    alone = {f"headlight_{name}_total" for name in names}
    assert alone | {"headlight_interactive_duration_seconds_count"} <= {name for name, _ in found}
    assert not any(v for (name, _), v in found.items() if name.endswith(("_total", "_count")))


@pytest.mark.parametrize(
    ("seen", "family", "labels"),
    [
        (Record("/v1/encode", refused="nonfinite_output", code=500), "nonfinite_outputs", {}),
        (Record("/v1/encode", refused="deadline_exceeded"), "shed", {"reason": "deadline"}),
        (Record("/v1/encode", refused="not_ready"), "shed", {"reason": "not_ready"}),
        (
            Record("/v1/encode", refused="deadline_exceeded", given_seconds=0.249),
            "shed",
            {"reason": "client_deadline"},
        ),
        (
            Record("/v1/encode", refused="overloaded", shed="deadline", given_seconds=0.002),
            "shed",
            {"reason": "client_deadline"},
        ),
        (
            Record("/v1/encode", refused="overloaded", shed="queue_full", given_seconds=0.002),
            "shed",
            {"reason": "queue_full"},
        ),
        (
            Record("/v1/encode", refused="deadline_exceeded", given_seconds=0.25),
            "shed",
            {"reason": "deadline"},
        ),
        (
            Record("/v1/encode", refused="deadline_exceeded", shed="share"),
            "shed",
            {"reason": "share"},
        ),
        (Record("/info", refused="overloaded", shed="share"), None, {}),
        (Record("/v1/encode", refused="batch_empty"), "invalid_inputs", {"code": "batch_empty"}),
        (Record("/v1/encode", code=401), None, {}),
        (Record("/ready", refused="not_ready"), None, {}),
        (Record("/v1/encode", refused="internal"), None, {}),
    ],
)
def test_a_refusal_is_counted_where_an_alert_looks_for_it(
    seen: Record, family: str | None, labels: dict[str, str]
) -> None:
    """In one family at most; a probe or a page that says no has turned no work away."""
    metrics = Metrics("r", "m")
    metrics.count_request(seen)

    told = ("shed_", "invalid_", "nonfinite_")
    found = [
        (name, dict(rest))
        for (name, rest), value in samples(metrics).items()
        if value and name.removeprefix("headlight_").startswith(told)
    ]
    expected = (
        [(f"headlight_{family}_total", {**labels, "model": "m", "replica": "r"})] if family else []
    )
    assert found == expected


def test_the_objective_is_of_short_requests_that_were_answered() -> None:
    """Neither bulk, nor refusals, nor pages; a key's wait behind its own others is its own."""
    metrics = Metrics("r", "m")
    short = Record("/v1/encode", code=200, tokens=families.OBJECTIVE.tokens)
    short.add_wait(9.0)
    short.seconds = 9.2
    metrics.count_request(short)
    metrics.count_request(Record("/v1/encode", code=200, tokens=families.OBJECTIVE.tokens + 1))
    metrics.count_request(Record("/v1/encode", code=504, tokens=5, refused="deadline_exceeded"))
    metrics.count_request(Record("/v1/models", code=200))

    found = samples(metrics)

    assert total(found, "interactive_duration_seconds_count") == 1
    assert counted(found, "interactive_duration_seconds_bucket", "le")["0.25"] == 1


def test_the_settings_say_what_is_short_and_promised() -> None:
    """A client that gives less than is promised is on its own."""
    metrics = Metrics("r", "m", (), families.Objective(2.0, 7))
    for tokens in (7, 8):
        metrics.count_request(Record("/v1/encode", code=200, tokens=tokens))
    for given in (1.9, 2.0):
        late = Record("/v1/encode", code=504, refused="deadline_exceeded", given_seconds=given)
        metrics.count_request(late)

    found = samples(metrics)

    assert total(found, "interactive_duration_seconds_count") == 1
    shed = counted(found, "shed_total", "reason")
    assert (shed["client_deadline"], shed["deadline"]) == (1, 1)
    defaults = Settings()
    assert (defaults.objective_seconds, defaults.objective_tokens) == families.OBJECTIVE


async def test_a_short_request_is_held_to_the_objective_and_a_long_one_is_not(
    client: httpx.AsyncClient,
) -> None:
    """By the tokens of all that it asks."""
    before = await page(client)
    for body in ({"inputs": ["All is well"]}, {"inputs": ["All is well"] * 200}):
        assert (await client.post("/v1/encode", json=body)).is_success
    await client.get("/v1/models")
    after = await page(client)

    name = "interactive_duration_seconds_count"
    assert total(after, name) - total(before, name) == 1


async def test_the_page_about_them_has_every_family_with_its_labels(
    client: httpx.AsyncClient,
) -> None:
    """docs/observability.md has what a scrape has; more on CUDA and with keys."""
    docs = Path(__file__).parents[3] / "docs" / "observability.md"
    rows = re.findall(r"^\| (`headlight_.*?) \| (.*?)\|", docs.read_text("utf-8"), re.MULTILINE)
    shown = {
        name: {label for label in labels.strip().split(", ") if label} - {"key"}
        for names, labels in rows
        for name in re.findall(r"`headlight_(\w+?)(?:_total)?`", names)
    }
    await client.post("/v1/encode", json={"inputs": [""]})  # of which a refusal is counted

    page = (await client.get("/metrics")).text

    assert shown.pop("gpu_memory_bytes") == {"state"} and shown.pop("keys_stale") == set()
    assert shown == {
        family.name.removeprefix("headlight_"): {
            label for sample in family.samples for label in sample.labels
        }
        - {"model", "replica", "le"}
        for family in text_string_to_metric_families(page)
    }


async def test_every_help_text_stands_alone(client: httpx.AsyncClient) -> None:
    """No two alike, each long enough to say what is counted, and the unit where the name has it."""
    text = (await client.get("/metrics")).text
    helps = dict(re.findall(r"^# HELP headlight_(\w+) (.+)$", text, re.MULTILINE))
    units = ("seconds", "bytes", "tokens", "tokens per second")

    assert len(set(helps.values())) == len(helps) > 25
    for name, sentence in helps.items():
        assert re.fullmatch(r"[A-Z0-9].*\.", sentence) and len(sentence.split()) > 3, name
        said = sentence.lower()
        assert all(unit in said for unit in units if unit.replace(" ", "_") in name), name


def test_a_label_outside_its_closed_set_is_a_bug_and_no_new_series() -> None:
    """Nothing a client sends can be one."""
    with pytest.raises(KeyError):
        Metrics("r", "m").cancelled.add("elsewhere")


async def test_counters_equal_what_was_sent(client: httpx.AsyncClient) -> None:
    """By route and code, refusals by their code, stages once for each that was reached."""
    before, scrape = await page(client), ("/metrics", "200")
    for method, path, body, status in TRAFFIC:
        answer = await client.request(method, path, json=body)
        assert answer.status_code == status, (path, body, answer.text)
    after = await page(client)

    def grown(name: str, label: str) -> Counter[str]:
        return counted(after, name, label) - counted(before, name, label)

    ours = ("/v1/encode", "/v1/explain", "/v1/attend", "/info")
    sent = [(path.partition("?")[0], str(status)) for _, path, _, status in TRAFFIC] + [scrape]
    routes = [path if path in (*ours, "/metrics") else "other" for path, _ in sent]
    assert grown("requests_total", "route") == Counter(routes)
    assert grown("requests_total", "code") == Counter(code for _, code in sent)
    assert grown("invalid_inputs_total", "code") == {
        "model_not_found": 1,
        "sequence_empty": 1,
        "batch_empty": 1,
        "missing_field": 1,
        "sequence_too_long": 1,
        "out_of_range": 1,
        "index_out_of_range": 1,
        "method_not_allowed": 2,
        "not_found": 21,
    }
    stages = {"parse": 14, "tokenize": 9, "queue": 6, "forward": 6, "serialize": 7}
    assert grown("stage_duration_seconds_count", "stage") == stages
    assert grown("batch_tokens_count", "replica").total() >= 6
    assert not grown("shed_total", "reason") and not grown("cancelled_total", "stage")


async def test_tokens_of_answers_are_exact(client: httpx.AsyncClient) -> None:
    """What went out is what was counted."""
    before = await page(client)
    answer = await client.post("/v1/encode", json={"inputs": ["All is well"], "attention": {}})
    after = await page(client)

    grown = total(after, "tokens_total") - total(before, "tokens_total")
    assert grown == answer.json()["usage"]["tokens"] == 5


@pytest.mark.parametrize(
    ("given_ms", "reason"),
    [
        ("30000", "queue_full"),
        ("30000", "token_budget"),
        ("30000", "deadline"),
        ("200", "client_deadline"),
    ],
)
async def test_what_is_turned_away_is_counted_by_the_bound_it_met(
    client: httpx.AsyncClient,
    replica: Replica,
    monkeypatch: pytest.MonkeyPatch,
    given_ms: str,
    reason: str,
) -> None:
    """One count for one 429."""
    before = counted(await page(client), "shed_total", "reason")
    asked = {"json": {"inputs": ["a"]}, "headers": {"x-headlight-deadline-ms": given_ms}}
    match reason:
        case "queue_full":
            bound(monkeypatch, replica.batcher, requests=0)
        case "token_budget":  # met only where something waits already
            bound(monkeypatch, replica.batcher, tokens=5)
        case _:
            slow_down(monkeypatch, replica.batcher)
    with stalled(replica.batcher):
        first = asyncio.create_task(client.post("/v1/encode", **asked))
        while not (first.done() or replica.batcher.waiting_requests):
            await asyncio.sleep(0)
        answer = await client.post("/v1/encode", **asked) if not first.done() else first.result()
    assert (await first).status_code == (200 if reason == "token_budget" else 429)
    monkeypatch.undo()

    assert answer.status_code == 429
    assert counted(await page(client), "shed_total", "reason") - before == {reason: 1}


@pytest.mark.parametrize("body", [{"inputs": ["a" * 100_000]}, {"inputs": ["a"] * 70}])
async def test_what_finds_no_memory_is_counted_as_such(
    served: Callable[..., httpx.AsyncClient], client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    """Whether its body or its answer finds none."""
    before = counted(await page(client), "shed_total", "reason")
    async with served(max_held_bytes=1) as other:
        answer = await other.post("/v1/encode", json=body)

    assert answer.status_code == 429
    assert counted(await page(client), "shed_total", "reason") - before == {"memory": 1}


async def test_a_client_that_leaves_is_counted_where_its_request_was(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """In the queue, while all lanes are taken; its code is 499."""
    before = await page(client)
    with stalled(replica.batcher):
        asked = asyncio.create_task(client.post("/v1/encode", json={"inputs": ["a"]}))
        while not replica.batcher.waiting_requests:
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    after = await page(client)

    def grown(name: str, label: str) -> Counter[str]:
        return counted(after, name, label) - counted(before, name, label)

    assert grown("cancelled_total", "stage") == {"queue": 1}
    assert grown("requests_total", "code") == {"499": 1, "200": 1}


async def test_what_fills_is_seen_to_fill_and_to_empty_and_to_fill_again(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """A gauge that stays up would say for ever that a replica is full."""
    names = ("waiting_requests", "waiting_tokens", "waiting_seconds", "requests_in_flight")

    async def held() -> dict[str, float]:
        found = await page(client)
        return {
            name: sum(value for (one, _), value in found.items() if one == f"headlight_{name}")
            for name in (*names, "held_bytes")
        }

    empty = await held()
    assert not any(empty[name] for name in names)
    for _ in range(2):
        with stalled(replica.batcher):
            asked = asyncio.create_task(client.post("/v1/encode", json={"inputs": ["a"]}))
            while not replica.batcher.waiting_requests:
                await asyncio.sleep(0)
            full = await held()
        assert (await asked).is_success
        assert (full["waiting_requests"], full["waiting_tokens"]) == (1, 3)
        assert full["requests_in_flight"] == 1 and full["waiting_seconds"] > 0
        assert full["held_bytes"] > empty["held_bytes"]
        assert await held() == empty


async def test_self_checks_are_counted_and_are_no_requests(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Also those that pass: an alert on failures needs to know that there were runs."""
    before = await page(client)
    assert replica.health is not None
    await replica.health.run_canary()
    after = await page(client)

    grown = {
        name: total(after, name) - total(before, name)
        for name in ("canary_runs_total", "canary_failures_total", "tokens_total")
    }
    assert grown["canary_runs_total"] >= 1  # the watch's own may have come between
    assert grown["canary_failures_total"] == grown["tokens_total"] == 0


async def test_a_page_stays_small_whatever_is_sent(client: httpx.AsyncClient) -> None:
    """Every path, method, input and code of the traffic, and the same again as garbage."""
    for method, path, body, _ in TRAFFIC * 2:
        await client.request(method, path, json=body, headers={"x-request-id": path})
    await page(client)  # whose own route is timed from its first answer on
    series = len(await page(client))
    for number in range(30):
        await client.request(f"M{number}", f"/v1/encode/{number}", content=b"\xff" * number)

    found = await page(client)

    assert len(found) - series <= 2  # of `other`: another code, another input
    routes = set(counted(found, "requests_total", "route"))
    timed = set(counted(found, "request_duration_seconds_count", "route"))
    assert timed <= routes
    assert {"other", "/v1/encode", "/v1/embeddings", "/embed", "/v1/heads"} <= routes
    assert routes - {"other"} <= set(document()["paths"]) | ASIDE


async def test_a_replica_that_was_asked_everything_has_few_series(
    outer: Callable[[Replica], ASGIApp],
) -> None:
    """Of routes, all inputs were there before the first one; their times and pages came after."""
    replica = await Replica.start(Settings(device="cpu", threads=1), "r")
    transport = httpx.ASGITransport(outer(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        before = await page(client)
        for path, bodies in EVERYTHING.items():
            here = _named(path, replica)
            for body in bodies:
                await client.post(here, json=body)
            await client.post(here, content=b"{", headers={"content-type": "application/json"})
        for path in {row.path for row in ROUTES if row.method == "get"}:
            await client.get(_named(path, replica))
        await client.get("/nothing")
        after = await page(client)
    await replica.close()

    pages = {(name, "none") for name in families.PAGE_PATHS}
    first = asked(after) - asked(before)
    assert pages - {("/metrics", "none")} <= first  # which the first page was asked of
    assert {path for path, _ in first}.isdisjoint(EVERYTHING) and {k for _, k in first} == {"none"}
    assert asked(after) == asked(after, least=1)
    print(f"{len(before)} series before the first request, {len(after)} after")
    assert len(before) < IDLE_SERIES and len(after) < MOST_SERIES


def _named(path: str, replica: Replica) -> str:
    """A path of the table with the model that is served."""
    return path.replace("{version}", "1").replace("{model}", replica.name)


def test_no_alert_asks_for_a_page() -> None:
    """Its first answer may be missing from a rate."""
    rules = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules"
    text = "".join(file.read_text("utf-8") for file in rules.iterdir())
    routed = re.findall(r'route!~"([^"]+)"', text)

    assert routed and text.count("route=") == 0
    assert all(re.fullmatch(left_out, name) for left_out in routed for name in families.PAGE_PATHS)
    of_routes = re.findall(r"headlight_request(?:s_total|_duration\w+)\{?", text)
    assert len(of_routes) == len(routed)


async def test_promtool_finds_nothing_to_better(client: httpx.AsyncClient) -> None:
    """Names, units and help of a real page."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Debian's prometheus")
    text = (await client.get("/metrics")).content

    checked = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=text, capture_output=True
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_what_a_key_uses_is_counted_by_its_name() -> None:
    """Requests, tokens, sheds; without keys no series has such a label."""
    metrics = Metrics("r", "m", ["a", "b"])
    metrics.publish_routes({"/v1/encode": families.INPUTS})
    metrics.count_request(Record("/v1/encode", key="a", input="text", code=200))
    metrics.count_request(
        Record("/v1/encode", key="b", code=429, refused="overloaded", shed="share")
    )
    metrics.count_request(Record("/v1/encode", code=401, refused="unauthorized"))
    metrics.count_tokens(5, "a")
    metrics.count_tokens(7)

    found, without = samples(metrics), samples(Metrics("r", "m"))

    assert counted(found, "requests_total", "key") == {"": 1, "a": 1, "b": 1}
    assert counted(found, "tokens_total", "key") == {"": 7, "a": 5, "b": 0}
    assert counted(found, "shed_total", "key") == {"": 0, "a": 0, "b": 1}
    assert counted(found, "shed_total", "reason")["share"] == 1
    failed = [dict(labels) for name, labels in found if name == "headlight_requests_total"]
    assert {labels["key"] for labels in failed if labels["code"] == "500"} == {"", "a", "b"}
    assert not any("key" in dict(labels) for _, labels in without)


def test_of_thousands_of_keys_those_that_asked_have_series() -> None:
    """All that an alert reads of them, from their first request on."""
    many, one = Metrics("r", "m", [f"k{number}" for number in range(5000)]), Metrics("r", "m", "k")
    fewest = len(samples(one))

    assert len(samples(many)) == fewest
    for metrics, key in ((many, "k4999"), (one, "k")):
        metrics.count_request(Record("/v1/encode", "POST", "1", key))
    assert len(samples(many)) == len(samples(one)) > fewest + 10


def test_what_is_counted_while_a_page_is_written_is_on_the_next() -> None:
    """A thread writes it of a copy, and its page is not kept for those that ask later."""
    metrics = Metrics("r", "m", ["a", "b"])
    write = metrics.freeze()
    metrics.count_request(Record("/v1/encode", "POST", "1", "a"))
    metrics.count_tokens(3, "b")
    before, after = read(write().decode()), samples(metrics)

    assert total(before, "requests_total") == total(before, "tokens_total") == 0
    assert (total(after, "requests_total"), total(after, "tokens_total")) == (1, 3)


def test_keys_that_come_are_counted_and_the_series_of_those_that_go_end() -> None:
    """A request of a key that has gone meanwhile counts as one of none."""
    metrics = Metrics("r", "m", ["a", "b"])
    for key in ("a", "b"):
        metrics.count_request(Record("/v1/encode", key=key, input="text", code=200))
        metrics.count_tokens(5, key)
    samples(metrics)
    metrics.set_keys(["b", "c"])
    metrics.count_tokens(7, "c")
    metrics.count_tokens(1, "a")
    metrics.count_request(Record("/v1/encode", key="a", input="text", code=200))
    found = samples(metrics)

    assert counted(found, "tokens_total", "key") == {"": 1, "b": 5, "c": 7}
    assert counted(found, "requests_total", "key") == {"": 1, "b": 1}
    assert counted(found, "shed_total", "key").keys() == {"", "b", "c"}


async def test_a_key_is_named_in_what_is_told(
    served: Callable[..., httpx.AsyncClient], log: Callable[[], str]
) -> None:
    """Of every request that came with it, whatever came of it."""
    key = "the-key-of-a-12345678"
    bearer = {"authorization": f"Bearer {key}"}
    async with served(api_keys=keys.parse_keys(f"team-a:{key}")) as client:
        await client.post("/v1/encode", json={"inputs": ["a"]}, headers=bearer)
        await client.post("/v1/encode", content=b"{", headers=bearer)
        await client.post("/v1/encode", content=b"\xff", headers=bearer)
        await client.get("/info", headers=bearer)

    lines = [json.loads(line) for line in log().splitlines()]
    told = [(line["code"], line.get("key")) for line in lines if line["event"] == "request"]
    assert told == [(code, "team-a") for code in (200, 400, 400, 200)]
    assert key not in log()


def test_buckets_of_routes_and_stages_compare_and_hold_the_objective() -> None:
    """From 2 ms to 30 s each at most 2.1 times the one before; 250 ms is a boundary."""
    times = families.BUCKETS

    assert (times[0], times[-1]) == (0.002, 30) and 0.25 in times
    assert all(1.5 <= after / before <= 2.1 for before, after in pairwise(times))
    assert families.STAGE_BUCKETS[-len(times) :] == times
    assert families.OBJECTIVE.seconds in times
