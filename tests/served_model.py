"""A model over HTTP: its replica, and a client that holds answers to the API's document."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.api_document import hold

Listen = Callable[..., AbstractAsyncContextManager[str]]
Outer = Callable[[Replica], ASGIApp]


@dataclass(frozen=True)
class Served:
    """One model, its replica, a client of it, and its address."""

    http: httpx.AsyncClient
    replica: Replica
    url: str

    async def post(self, path: str, status: int = 200, **body: Any) -> Any:
        """An answer of this status."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        hold(path.partition("?")[0], answer)
        return answer.json()

    async def encode(self, *inputs: Any, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/encode answers to some inputs."""
        told: list[dict[str, Any]] = (await self.post("/v1/encode", inputs=inputs, **body))["data"]
        return told


@asynccontextmanager
async def serve(
    folder: Path, name: str, listen: Listen, outer: Outer, **choices: Any
) -> AsyncIterator[Served]:
    """A folder's model on a port of its own, until the end."""
    own = {"device": "cpu", "threads": 1, "served_model_name": name}
    settings = Settings(model=str(folder), **own, **choices)
    replica = await Replica.start(settings, f"{name}-1")
    try:
        async with (
            listen(outer(replica)) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            yield Served(http, replica, url)
    finally:
        await replica.close()
