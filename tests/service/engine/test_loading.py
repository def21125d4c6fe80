"""Which kernels a model is loaded with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from model import kernels
from service.edge import guard
from service.replica import Replica
from service.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_head_that_fast_kernels_do_not_take_is_answered_by_the_plain_ones(
    loud: Path, outer: Callable[[Replica], guard.Guard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left at the start; no request meets them."""

    def picky(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if q.shape[-1] % 8:
            raise RuntimeError("head_size must be a multiple of 8")
        return kernels.attend_plain(q, k, v, scale, bias)

    monkeypatch.setattr(kernels, "ONEDNN", replace(kernels.PLAIN, name="picky", attend=picky))
    replica = await Replica.start(Settings(model=str(loud), device="cpu", threads=1), "odd-1")
    transport = httpx.ASGITransport(outer(replica))

    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        answer = await client.post("/v1/encode", json={"inputs": ["All is well"]})
    await replica.close()

    assert answer.status_code == 200, answer.text
    assert answer.json()["numerics"].startswith("cpu-fp32-plain-")
