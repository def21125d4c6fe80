"""What the runbooks say to run, on a service that asks for keys."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp

from service.pipeline.replica import Replica
from service.tables.keys import parse_keys
from tests import runbooks
from tests.replica_internals import under

ROOT = Path(__file__).parent.parent
# What Prometheus itself, Ray and HAProxy publish
OTHERS = re.compile(
    "up|ray_serve_application_status|haproxy_[a-z_]+_total|pod:headlight_[a-z_:0-9]+"
)


@pytest.mark.skipif(shutil.which("wget") is None, reason="the image has wget")
async def test_a_service_with_keys_answers_each_command(
    replica: Replica,
    listen: Callable[..., AbstractAsyncContextManager[str]],
    outer: Callable[[Replica], ASGIApp],
) -> None:
    """Without one where the path is open, else with the marked one: a 401 would say nothing."""
    asked = [line for line in runbooks.commands() if "localhost:8000" in line]
    keyed = under(replica, api_keys=parse_keys(runbooks.KEYS))
    async with listen(outer(keyed)) as url:
        port = httpx.URL(url).port
        said = [await asyncio.to_thread(runbooks.run, line, port) for line in asked]

    assert len(asked) >= 3
    for line, text in zip(asked, said, strict=True):
        assert text and " 401 " not in text, (line, text)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian: prometheus")
def test_prometheus_understands_each_query(tmp_path: Path) -> None:
    """As a rule of its own."""
    rules = [{"record": f"a:b{n}", "expr": one} for n, one in enumerate(runbooks.queries())]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "a", "rules": rules}]}))

    command = ["promtool", "check", "rules", tmp_path / "rules.yml"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert len(rules) > 20
    assert done.returncode == 0, done.stderr


def test_each_query_asks_for_what_is_published() -> None:
    """By its name in docs/observability.md, or by another program."""
    page = (ROOT / "docs" / "observability.md").read_text()
    known = set(re.findall(r"`(headlight_\w+)`", page.partition("## Alerts")[0]))
    asked = {
        name
        for query in runbooks.queries()
        for name in re.findall(r"(?<![\w:])((?:\w+:)?(?:headlight|haproxy|ray)_[\w:]+)", query)
    }

    for name in asked:
        plain = re.sub("_(sum|count|bucket)$", "", name)
        assert plain in known or OTHERS.fullmatch(name), name
