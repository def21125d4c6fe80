"""The page of metrics and the targets that a replica gathers, with stand-ins for Ray's answers."""

import warnings
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Ray warns of Ray's own age
    from ray.serve.exceptions import RayServeException

    from service.fleet import pages
    from service.fleet.pages import Pages
from service.observe.metrics import Metrics

# Applications, the prefix of each, its replicas, and how many Ray counts: one of mine starts
PREFIXES = {"headlight": "/", "mine": "/mine", "foreign": "/foreign"}
REPLICAS = {"headlight": ["h1", "h2"], "mine": ["m1"]}
COUNTED = {"headlight": {"RUNNING": 2}, "mine": {"RUNNING": 1, "STARTING": 1, "STOPPING": 1}}


class Ray:
    """Stands in for Ray Serve."""

    silent = False

    def get_deployment_handle(self, deployment: str, application: str) -> Any:
        """The handle of an application of ours; there is none of others."""
        assert deployment == "Encoder"
        broadcast = Broadcast([page(name, application) for name in REPLICAS[application]])
        return SimpleNamespace(broadcast=lambda *_: broadcast)

    def status(self) -> Any:
        """What runs."""
        if self.silent:
            raise RayServeException("silent")
        deployments = {
            name: {"Encoder": SimpleNamespace(replica_states=states, status="HEALTHY")}
            for name, states in COUNTED.items()
        }
        deployments["foreign"] = {"Other": SimpleNamespace(replica_states={"RUNNING": 9})}
        applications = {name: SimpleNamespace(deployments=own) for name, own in deployments.items()}
        return SimpleNamespace(applications=applications)

    def groups(self, application: str, *, from_proxy_manager: bool) -> Any:
        """Where the replicas of an application are."""
        assert from_proxy_manager
        targets = [SimpleNamespace(ip=name, port=30000) for name in REPLICAS[application][::-1]]
        prefix = PREFIXES[application]
        return [SimpleNamespace(protocol="HTTP", route_prefix=prefix, targets=targets)]


class Broadcast:
    """Stands in for the answers of an application's replicas."""

    def __init__(self, answers: list[tuple[str, bytes]]) -> None:
        self._answers = answers

    async def results_async(self, *, return_exceptions: bool) -> list[object]:
        """The replicas' names and pages, and what one that has died raises."""
        assert return_exceptions
        return [*self._answers, RayServeException("died")]


def page(replica: str, model: str) -> tuple[str, bytes]:
    """A replica's name and page."""
    return replica, Metrics(replica, model).freeze()()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """In place of Ray, one that has two models and what is not ours."""
    ray = Ray()
    controller = SimpleNamespace(get_target_groups=SimpleNamespace(remote=ray.groups))
    monkeypatch.setattr(pages, "serve", ray)
    monkeypatch.setattr(
        pages.cluster, "serve_client", lambda: SimpleNamespace(_controller=controller)
    )
    monkeypatch.setattr(pages.ray, "get", lambda reply, timeout: reply)
    return ray


@pytest_asyncio.fixture
async def gathered(ray: Ray) -> AsyncIterator[Pages]:
    """The pages of a replica of the application at the root."""

    async def own(openmetrics: bool) -> tuple[str, bytes]:
        return page("h1", "headlight")

    found = Pages("Encoder", "headlight", own)
    yield found
    found.close()


def read(page: bytes) -> dict[str, set[str]]:
    """The replicas on a page by model, and of `""` the values that describe it whole."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            whole = f"{sample.name.removeprefix('headlight_')} {sample.value:g}"
            found.setdefault(model, set()).add(sample.labels.get("replica", whole))
    return found


@pytest.mark.asyncio
async def test_a_page_has_the_replicas_of_every_model_or_of_one(gathered: Pages) -> None:
    """Each sample with its model; what Ray counts and did not answer makes it incomplete."""
    every, again = [await gathered.scrape(False, True) for _ in range(2)]
    own = await gathered.scrape(False, False)

    ours = {"headlight": {"h1", "h2"}}
    told = {"scrape_incomplete 1", "replicas_expected 4"}
    assert read(every) == read(again) == {**ours, "mine": {"m1"}, "": told}
    assert read(own) == {**ours, "": {"scrape_incomplete 0", "replicas_expected 2"}}


@pytest.mark.asyncio
async def test_a_page_has_the_models_that_were_known_where_ray_is_silent(
    gathered: Pages, ray: Ray
) -> None:
    """Ray's controller is not asked for what the replicas say themselves."""
    await gathered.scrape(False, True)
    ray.silent = True

    told = read(await gathered.scrape(False, True))

    assert told == {"headlight": {"h1", "h2"}, "mine": {"m1"}, "": {"scrape_incomplete 1"}}


@pytest.mark.asyncio
async def test_targets_are_the_replicas_of_every_model_or_of_one(gathered: Pages) -> None:
    """By the prefix below which each has its page."""
    at_root = {"": ["h1:30000", "h2:30000"]}

    assert await gathered.targets(True) == {**at_root, "/mine": ["m1:30000"]}
    assert await gathered.targets(False) == at_root
