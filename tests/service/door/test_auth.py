"""Who may ask, and that a key is seen nowhere."""

import asyncio
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from service.api import ROUTES
from service.api.pages import PAGE_PREFIX
from service.cluster.choose_model import MODEL_HEADER, NAMES_HEADER
from service.door.door import Door
from service.door.forward import Forwarder
from service.engine.batcher import Batcher
from service.observe.metrics import Metrics
from service.page import site
from service.pipeline.replica import Replica
from service.shapes.work import Result, Work
from service.start import ray_session
from service.tables import keyring, keys
from service.tables.refusals import Refused
from service.tables.sources import load_settings
from tests.conftest import application, connected
from tests.replica_internals import altered, stalled, under

KEY, OTHER = "canary-Key_123456789", "another-key-123456"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
HELD = keys.parse_keys(f"{KEY}\nteam-b:{OTHER}\n")
BEARER = {"authorization": f"Bearer {KEY}"}
TYPED = {**BEARER, "content-type": "application/json"}
# by the contract; the page's own files are open, its calls are not
PUBLIC = {"/", "/docs", "/live", "/ready", "/health", "/v2/health/live", "/v2/health/ready"}
PUBLIC |= {PAGE_PREFIX + name for name in site.PAGE_FILES}

Served = Callable[..., httpx.AsyncClient]


@pytest.fixture(params=["", "/minilm"], ids=["at the root", "below a prefix"])
def prefix(request: pytest.FixtureRequest) -> str:
    """Where Ray has put the routes."""
    return str(request.param)


async def test_every_route_but_the_open_ones_asks_for_a_key(
    served: Served,
) -> None:
    """All routes of the application, and paths that are none, by every method."""
    paths = {row.path for row in ROUTES}
    paths |= {"/nothing", "/-/routes", "/-/healthz/", "/metrics//", "/live/none", "/Live"}
    assert len(paths) > 12
    async with served(api_keys=HELD) as client:
        for path in paths:
            for method in ("GET", "HEAD", "POST", "DELETE", "PATCH"):
                answer = await client.request(method, path)
                opened = path in PUBLIC and method in ("GET", "HEAD")
                assert (answer.status_code == 401) != opened, (method, path)


async def test_each_key_lets_in_and_a_preflight_needs_none(served: Served) -> None:
    """By its name in any case; what is asked is then answered as ever."""
    asked = {"inputs": ["All is well"]}
    async with served(api_keys=HELD) as client:
        for value in (f"Bearer {KEY}", f"bearer {OTHER}", f"BEARER  {KEY}"):
            answer = await client.post("/v1/encode", json=asked, headers={"authorization": value})
            assert answer.status_code == 200, value
        preflight = await client.options("/v1/encode", headers={"origin": "http://a.example"})

    assert preflight.status_code == 405


async def test_whatever_is_wrong_with_a_key_the_answer_is_the_same(served: Served) -> None:
    """Missing, malformed, wrong, twice, in the query: byte for byte."""
    wrong: list[list[tuple[str, str]]] = [
        [],
        [("authorization", KEY)],
        [("authorization", f"Basic {KEY}")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", f"Bearer {KEY[:-1]}")],
        [("authorization", f"Bearer {KEY} {KEY}")],
        [("authorization", f"Bearer {DIGEST}")],
        [("authorization", f"Bearer {KEY}"), ("authorization", f"Bearer {KEY}")],
        [("x-api-key", KEY)],
    ]
    async with served(api_keys=HELD) as client:
        answers = [
            await client.post(
                f"/v1/encode?api_key={KEY}", content=b"{", headers=[*given, ("x-request-id", "one")]
            )
            for given in wrong
        ]

    assert {answer.status_code for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["code"] == "unauthorized"


async def test_a_key_that_is_gone_is_refused_and_a_new_one_let_in(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever serves at the time; a file that is wrong lets in and refuses as before."""
    monkeypatch.setattr(keyring, "POLL_SECONDS", 1e6)
    monkeypatch.setattr(keyring, "SETTLED_SECONDS", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"me:{KEY}\n")
    other, asked = under(replica, api_keys_file=file), {"inputs": ["All is well"]}
    async with connected(application(other)) as client:

        async def codes(text: str) -> list[int]:
            file.write_text(text)
            other.ring.reload()
            bearers = ({"authorization": f"Bearer {key}"} for key in (KEY, OTHER))
            return [
                (await client.post("/v1/encode", json=asked, headers=bearer)).status_code
                for bearer in bearers
            ]

        assert await codes(f"me:{KEY}\n") == [200, 401]
        assert await codes(f"me:{KEY}\nme:{OTHER}\n") == [200, 200]
        assert await codes(f"me:{OTHER}\n") == [401, 200]
        assert await codes("") == [401, 200]
        assert await codes(f"me:{KEY}\n") == [200, 401]


OWN = "all-MiniLM-L6-v2"  # the model that is served here
POSTS = {  # what each route with a body is asked
    "/v1/encode": {"inputs": ["All is well"]},
    "/v1/embeddings": {"input": "All is well", "model": OWN},
    "/embed": {"inputs": "All is well"},
    "/v2/embed": {"model": OWN, "texts": ["a"], "input_type": "classification"},
    f"/v2/models/{OWN}/infer": {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]
    },
    "/v1/similarity": {"left": "a", "right": ["b"]},
    "/v1/explain": {"text": "a", "layer": 0},
    "/v1/attend": {"scores": [[0.6, 0.4]], "value": [[1.0], [0.0]], "heads": 1},
    "/tokenize": {"inputs": "a"},
    "/decode": {"ids": [101, 102]},
}


@pytest.mark.parametrize(
    ("models", "allowed"),
    [
        (OWN, True),
        (f"sentence-transformers/{OWN.upper()}:latest", True),
        (f"reranker,{OWN.lower()}", True),
        ("reranker,sparse", False),
    ],
)
async def test_a_key_that_names_models_may_use_no_other(
    served: Served, models: str, allowed: bool
) -> None:
    """By whatever route takes a body; a name is the model's as a request's is."""
    held = keys.parse_keys(f"a:{KEY} models={models}")
    async with served(api_keys=held) as client:
        answers = {
            path: await client.post(path, json=body, headers=BEARER) for path, body in POSTS.items()
        }
        listed = await client.get("/v1/models", headers=BEARER)

    codes = {path: answer.status_code for path, answer in answers.items()}
    assert codes == dict.fromkeys(POSTS, 200 if allowed else 403)
    assert listed.status_code == 200
    if not allowed:
        own, openai = answers["/v1/encode"].json(), answers["/v1/embeddings"].json()["error"]
        assert own["detail"].endswith('model. It may use "reranker" and "sparse".')
        assert own["code"] == openai["code"] == "model_forbidden"
        assert openai["type"] == "invalid_request_error" and own["detail"] in openai["message"]


async def test_every_route_with_a_body_asks_for_a_key_of_the_model(served: Served) -> None:
    """As the document shows its request; a model that is not here is refused as for any key."""
    held = keys.parse_keys(f"a:{KEY} models=reranker")
    asked = {row.path.format(model=OWN, version=1): row.examples for row in ROUTES if row.examples}
    async with served(api_keys=held) as client:
        codes = {
            path: (await client.post(path, content=examples[0].body, headers=TYPED)).status_code
            for path, examples in asked.items()
        }
        unknown = {"inputs": ["a"], "model": "no-such-model"}
        absent = await client.post("/v1/encode", json=unknown, headers=BEARER)

    assert codes == dict.fromkeys(asked, 403)
    assert asked.keys() >= {
        row.path for row in ROUTES if row.method == "post" and "{" not in row.path
    }
    assert absent.json()["code"] == "model_not_found"


async def test_what_another_model_is_to_answer_is_judged_there(
    replica: Replica,
    listen: Callable[..., AbstractAsyncContextManager[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The root's replica sends it on with its key, which need not be one of its own model."""
    held = keys.parse_keys(f"a:{KEY} models=reranker")
    here, got, codes = under(replica, api_keys=held), [], []

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        got.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async with listen(front) as address:
        forwarder = Forwarder(address, [OWN])
        monkeypatch.setattr("service.door.door.Forwarder", lambda *_: forwarder)
        async with connected(Door(here, no_metrics, None, address)) as client:
            for model in ("reranker", "sparse", OWN):
                body = {"inputs": ["a"], "model": model}
                told = BEARER | {NAMES_HEADER: f"{OWN}, reranker, sparse"}
                codes.append((await client.post("/v1/encode", json=body, headers=told)).status_code)
        await forwarder.close()

    assert codes == [418, 418, 403]
    sent = [(head[MODEL_HEADER], head["authorization"]) for head in got]
    assert sent == [(model, f"Bearer {KEY}") for model in ("reranker", "sparse")]


async def no_metrics(openmetrics: bool) -> bytes:
    """They are not read here."""
    return b""


async def test_the_models_of_a_key_change_with_its_file(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the next request on, as does the key itself."""
    monkeypatch.setattr(keyring, "POLL_SECONDS", 1e6)
    monkeypatch.setattr(keyring, "SETTLED_SECONDS", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"me:{KEY}\n")
    other, codes = under(replica, api_keys_file=file), []
    async with connected(application(other)) as client:
        for models in ("", " models=reranker", f" models=reranker,{OWN}", " models=sparse"):
            file.write_text(f"me:{KEY}{models}\n")
            other.ring.reload()
            body = {"inputs": ["All is well"]}
            codes.append((await client.post("/v1/encode", json=body, headers=BEARER)).status_code)

    assert codes == [200, 403, 200, 403]


async def most_waiting(queue: Batcher[Any, Any], key: str) -> int:
    """How many requests of a key may wait before its own limit is met."""
    asked = list[asyncio.Task[Any]]()
    with stalled(queue):
        try:
            while True:
                queue.check_admission(1, 1.0, math.inf, key)
                asked.append(asyncio.create_task(queue.submit(["a"], time.monotonic() + 60, key)))
                await asyncio.sleep(0)
        except Refused as overloaded:
            assert overloaded.bound == "key_requests"
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return len(asked)


async def test_what_comes_is_shared_among_the_keys_that_let_in_now(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the door, in the queue and in the metrics, from the next request on."""
    monkeypatch.setattr(keyring, "POLL_SECONDS", 1e6)
    monkeypatch.setattr(keyring, "SETTLED_SECONDS", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"me:{KEY}\n")
    held = keyring.KeyRing((), file)
    settings = replica.settings.model_copy(update={"api_keys_file": file})
    queue = Batcher[Work, Result](
        replica.lanes.run_in_lane, lanes=1, budget=9, speed=9, most_requests=9, most_tokens=9
    )
    metrics, own = Metrics("r", "m", ["me"]), {"ring": held, "shared": held.keys, "batcher": queue}
    door = application(altered(replica, settings=settings, metrics=metrics, **own))
    file.write_text(f"me:{KEY}\nteam-b:{OTHER} requests=3\n")
    held.reload()
    async with connected(door) as client:
        await client.get("/live")

    assert isinstance(door, Door) and door.gate.lines.keys() == {"me", "team-b"}
    assert await most_waiting(queue, "team-b") == 3
    metrics.count_tokens(7, "team-b")
    assert b'headlight_tokens_total{key="team-b",model="m",replica="r"} 7.0' in metrics.freeze()()


async def test_a_setting_opens_the_metrics_alone(served: Served) -> None:
    """For scrapers without a key; /docs has a field for one."""
    asked = ("/metrics", "/metrics/targets", "/docs", "/openapi.json", "/info", "/v1/heads")
    async with served(api_keys=HELD, public_metrics=True) as client:
        opened = {path for path in asked if (await client.get(path)).status_code == 200}

    assert opened == {"/metrics", "/metrics/targets", "/docs"}


async def test_a_marked_key_alone_reads_the_metrics_of_all(served: Served) -> None:
    """Any other is told what it lacks, and asks for all else as before."""
    held = keys.parse_keys(f"a:{KEY}\nprometheus:{OTHER} metrics\n")
    async with served(api_keys=held) as client:
        plain, marked = [
            [
                await client.get(path, headers={"authorization": f"Bearer {key}"})
                for path in ("/metrics", "/metrics?scope=replica", "/metrics/targets", "/info")
            ]
            for key in (KEY, OTHER)
        ]

    assert [answer.status_code for answer in plain] == [401, 401, 401, 200]
    assert [answer.status_code for answer in marked] == [200, 200, 200, 200]
    assert "`metrics`" in plain[0].json()["detail"]


async def test_a_key_is_seen_nowhere(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in logs, metrics, errors, /info, settings, or what Ray's processes are told."""
    caplog.set_level(logging.DEBUG)
    settled = load_settings({}, {"HEADLIGHT_API_KEYS": KEY})
    async with served(api_keys=HELD, public_metrics=True) as client:
        pages = [
            (await client.request(method, path, headers=headers)).text
            for headers in (BEARER, {"authorization": f"Basic {KEY}"})
            for method, path in (("GET", "/info"), ("GET", "/metrics"), ("POST", "/v1/encode"))
        ]
    monkeypatch.setenv("HEADLIGHT_API_KEYS", KEY)
    monkeypatch.setenv("HEADLIGHT_MAX_SEQUENCES", "3")
    ray_session.forget_settings()
    told = str(dict(os.environ))

    for text in (*pages, caplog.text, repr(settled), str(settled.model_dump()), told):
        assert KEY not in text
    for text in (*pages, caplog.text, repr(settled), str(settled.model_dump())):
        assert DIGEST not in text
    assert "HEADLIGHT" not in told
