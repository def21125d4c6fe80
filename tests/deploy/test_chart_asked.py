"""What the chart has others ask is answered, whatever the values are.

In process, behind the entrance.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from starlette.types import ASGIApp

from service.cluster import network
from service.pipeline.replica import Replica
from service.tables import sources
from service.tables.keys import parse_keys
from tests.deploy.asked import SERVE, Ask, asks, curl, listed
from tests.deploy.values import every_case
from tests.replica_internals import under

KEY, OWN = "the-key-of-prometheus", "the-key-of-a-client-1"
KEYS = parse_keys(f"prometheus:{KEY} metrics\nme:{OWN}\n")
# of Ray and of HAProxy's exporter
THEIRS = {
    (52365, "/api/local_raylet_healthz"),
    (52365, "/api/healthz"),
    (8080, "/metrics"),
    (9101, "/metrics"),
}
# what settings say of who may ask
JUDGED = ("allowed_hosts", "public_metrics", "cors_origins")
REFUSED = {401, 403, 404, 421}


class Service(NamedTuple):
    """A release's models in process, by the path below which each answers."""

    models: dict[str, ASGIApp]

    async def send(self, ask: Ask, **more: Any) -> httpx.Response:
        """Ask as it is asked, past HAProxy, which leads by path."""
        prefix = max((path for path in self.models if ask.path.startswith(path)), key=len)
        headers = ask.headers | {"Host": ask.host}
        if ask.keyed:
            headers["Authorization"] = f"Bearer {KEY if ask.by != 'client' else OWN}"
        if ask.method == "POST":
            more = {"json": {}} | more
        transport = httpx.ASGITransport(self.models[prefix])
        async with httpx.AsyncClient(transport=transport, base_url="http://a.pod") as client:
            path = ask.path.removeprefix(prefix) or "/"
            return await client.request(ask.method, path, headers=headers, **more)


@pytest.fixture
def released(
    documents: list[dict[str, Any]], replica: Replica, outer: Callable[..., ASGIApp]
) -> Service:
    """What a release's pods run, as far as it says who may ask."""
    (main,) = (one for one in documents if one["kind"] in ("Deployment", "RayService"))
    template = main["spec"].get("template")
    if not template:
        (group,) = main["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        template = group["template"]
    env = {each["name"]: each.get("value", "") for each in template["spec"]["containers"][0]["env"]}
    keys = KEYS if env.pop("HEADLIGHT_API_KEYS_FILE", None) else ()
    models = {}
    for path, args in listed(documents):
        found = sources.settle({}, env, {}, args, "")
        if main["kind"] == "Deployment":
            found = network.restrict_hosts(found.model_copy(update={"host": "0.0.0.0"}))
        said = {name: getattr(found, name) for name in JUDGED}
        models[path] = outer(under(replica, api_keys=keys, **said), "/")
    return Service(models)


@every_case
async def test_every_probe_and_scrape_is_answered(
    documents: list[dict[str, Any]], released: Service
) -> None:
    """A kubelet and a Prometheus ask by a pod's address, or by the Service's name."""
    for ask in asks(documents):
        if ask.port not in (SERVE, 30000):
            assert (ask.port, ask.path) in THEIRS
        elif ask.by != "client":
            answer = await released.send(ask)
            assert answer.status_code == 200, ask
            if ask.by == "prometheus":
                assert answer.headers["content-type"].startswith("application/openmetrics-text")
                names = {each.name for each in text_string_to_metric_families(answer.text)}
                assert "headlight_waiting_seconds" in names
            if ask.by == "discovery":
                assert answer.json()[0]["targets"]


@every_case
async def test_every_path_that_is_open_outside_leads_to_an_answer(
    documents: list[dict[str, Any]], released: Service
) -> None:
    """By the host names of the Ingress or the route; what an empty body lacks is said."""
    for ask in asks(documents):
        if ask.by == "client":
            answer = await released.send(ask)
            assert answer.status_code not in REFUSED and answer.status_code < 500, ask


@every_case
async def test_the_notes_command_is_answered(
    answers: dict[str, dict[str, Any]], case: str, released: Service
) -> None:
    """As it stands, by the port that it forwards."""
    url, headers, body = curl(answers[case]["files"]["NOTES.txt"])
    host, path = url.removeprefix("http://").split("/", 1)
    host = headers.pop("Host", host)
    keyed = bool(headers.pop("Authorization", ""))
    ask = Ask("client", "POST", f"/{path}", SERVE, host, headers, keyed)

    answer = await released.send(ask, json=None, content=body)

    assert answer.status_code == 200, answer.text
