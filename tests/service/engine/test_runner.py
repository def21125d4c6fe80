"""The runner: what comes out for each sequence, whatever runs beside it."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import httpx
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from model import kernels
from model.maps.forms import Asked
from model.maps.units import divide
from model.packing import Sequence
from service.edge import guard
from service.encode.gateway import Gateway
from service.engine import runner
from service.engine.runner import Done, NotTrustworthy, Wanted, Work
from service.engine.weights import BUNDLED, locate
from service.settings import Settings

CPU = torch.device("cpu")

pytestmark = pytest.mark.asyncio(loop_scope="session")


def done(gateway: Gateway, works: list[Work], threads: int = 1) -> list[Done]:
    """Results of a batch in which nothing may fail."""
    results = [r for r in gateway._runner.run(works, threads) if isinstance(r, Done)]
    assert len(results) == len(works)
    return results


async def test_the_bits_of_an_answer_do_not_depend_on_the_batch(gateway: Gateway) -> None:
    """Alone, in company at any place, on one core and on two."""
    random = np.random.default_rng(7)
    works = [
        Work(Sequence(random.integers(1000, 30000, length).tolist()), Wanted(tokens=True))
        for length in (1, 2, 3, 5, 16, 17, 63, 64, 128, 256)
    ]
    alone = [done(gateway, [work])[0].tokens for work in works]

    for threads in (1, 2):
        for _ in range(3):
            order = random.permutation(len(works))
            batch = done(gateway, [works[i] for i in order], threads)
            for place, i in enumerate(order):
                np.testing.assert_array_equal(batch[place].tokens, alone[i])


async def test_each_sequence_gets_what_it_wants(gateway: Gateway) -> None:
    """Wishes of different requests do not mix in a batch."""
    ids = [101, 2035, 102]
    plain = Work(Sequence(ids), Wanted())
    asked = Asked({2: (3, 5)}, divide(3))
    maps = Work(Sequence(ids), Wanted(attention=asked, hidden=frozenset({0})))

    first, second = done(gateway, [plain, maps])

    assert (first.pooled, first.tokens, first.hidden, first.attention) == (None, None, {}, None)
    assert second.attention is not None and list(second.hidden) == [0]
    shown = second.attention.heads[2]["map"]
    assert shown.shape == (2, 3, 3)
    np.testing.assert_allclose(shown.sum(-1), 1, atol=1e-5)


async def test_a_model_whose_bits_depend_on_the_batch_is_not_served(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start-up check sees it; this is the negative control of the promise."""
    runner = gateway._runner
    run = runner.run

    def leaky(works: list[Work], threads: int) -> list[Done | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Done) and result.tokens is not None:
                result.tokens[0, 0] += len(works) * 1e-6
        return results

    monkeypatch.setattr(runner, "run", leaky)

    with pytest.raises(NotTrustworthy):
        runner._check_invariance()


def moved(gateway: Gateway, above: int, by: float) -> Callable[..., list[Done | Exception]]:
    """A model whose answers move in batches of more than so many tokens."""
    run = gateway._runner.run

    def leaky(works: list[Work], threads: int) -> list[Done | Exception]:
        results = run(works, threads)
        for result in results:
            if isinstance(result, Done) and result.tokens is not None:
                result.tokens[:] *= 1 + by * (sum(map(len, works)) > above)
        return results

    return leaky


async def test_a_model_whose_bits_move_in_a_full_batch_alone_is_not_served(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix kernels may change with thousands of rows; the start tries a batch as large as any."""
    monkeypatch.setattr(gateway._runner, "budget", 2 * 1021)
    monkeypatch.setattr(gateway._runner, "run", moved(gateway, 900, 1e-6))

    with pytest.raises(NotTrustworthy, match="depends on the batch"):
        gateway._runner._check_invariance()


@pytest.mark.parametrize(("by", "right"), [(1e-6, True), (1e-3, False)])
async def test_where_bits_are_not_promised_the_canary_is_compared_closely(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, by: float, right: bool
) -> None:
    """A GPU's answer moves with the batch within rounding, which is no fault; more than it is."""
    runner = gateway._runner
    monkeypatch.setattr(runner, "fixed", False)
    leaky = moved(gateway, 100, by)
    canary = done(gateway, [runner.canary])[0]
    crowded = leaky([runner.canary, Work(Sequence([1] * 127), Wanted())], 1)[0]
    assert isinstance(crowded, Done)

    monkeypatch.setattr(runner, "run", leaky)

    assert runner.right(canary)
    assert runner.right(crowded) is right
    if right:
        assert runner._check_invariance().tobytes() == runner.golden.tobytes()
    else:
        with pytest.raises(NotTrustworthy):
            runner._check_invariance()


def unscaled(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention that forgot its scale."""
    return kernels.attend_plain(q, k, v, 1.0, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("model", [BUNDLED, "preset:transformer-base"])
async def test_every_number_format_is_held_against_plain_float32(
    dtype: torch.dtype, model: str
) -> None:
    """At the start, by the canary; a path that computes something else does not serve."""
    found = locate(model)
    broken = replace(kernels.PLAIN, attend=unscaled)
    with torch.inference_mode():
        runner._check_exact(runner._model(found, CPU, dtype, kernels.PLAIN), found, dtype)
        wrong = runner._model(found, CPU, dtype, broken)

        with pytest.raises(NotTrustworthy, match="differs from the plain float32 path's by"):
            runner._check_exact(wrong, found, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 17, 331])
async def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(
    dtype: torch.dtype, rows: int
) -> None:
    """One, or two that would cancel; the largest numbers of the format are no fault."""
    most = torch.finfo(dtype).max
    sound = torch.full((rows, 37), most, dtype=dtype)
    sound[:, ::2] = -most

    assert runner._finite(sound)
    assert runner._finite(sound.abs())
    for place in {0, 1, 18, rows * 37 // 2, rows * 37 - 1}:
        for wrong in (float("nan"), float("inf"), -float("inf")):
            broken = sound.clone()
            broken.view(-1)[place] = wrong
            assert not runner._finite(broken)
            broken.view(-1)[place - 1] = -wrong
            assert not runner._finite(broken)


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """A small BERT whose last hidden state is about 20 everywhere; one head, of odd size."""
    torch.manual_seed(0)
    bert = BertModel(
        BertConfig(
            vocab_size=30522,  # the bundled tokenizer's
            hidden_size=37,
            num_hidden_layers=2,
            num_attention_heads=1,
            intermediate_size=53,
            max_position_embeddings=419,
        )
    )
    with torch.no_grad():
        bert.encoder.layer[-1].output.LayerNorm.bias.fill_(20.0)
    bert.save_pretrained(tmp_path)
    shutil.copy(locate(BUNDLED).folder / "tokenizer.json", tmp_path)
    return tmp_path


async def test_large_finite_numbers_in_half_precision_are_answered(
    loud: Path, outer: Callable[[Gateway], guard.Guard]
) -> None:
    """Their sum is beyond float16's largest number, which says nothing of any of them."""
    gateway = Gateway(Settings(model=str(loud), device="cpu", dtype="float16", threads=1), "loud-1")
    await gateway.start()
    transport = httpx.ASGITransport(outer(gateway))
    body = {"inputs": [{"token_ids": [101] + [2035] * 400 + [102]}], "tokens": True}

    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        answer = await client.post("/v1/encode", json=body)
    metrics = gateway.page(False).decode()
    await gateway.close()

    assert answer.status_code == 200, answer.text
    vectors = np.array(answer.json()["data"][0]["token_vectors"])
    assert vectors.shape == (402, 37) and abs(vectors - 20).max() < 10
    assert 'headlight_nonfinite_outputs_total{replica="loud-1"} 0.0' in metrics


async def test_a_head_that_fast_kernels_do_not_take_is_answered_by_the_plain_ones(
    loud: Path, outer: Callable[[Gateway], guard.Guard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left at the start; no request meets them."""

    def picky(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if q.shape[-1] % 8:
            raise RuntimeError("head_size must be a multiple of 8")
        return kernels.attend_plain(q, k, v, scale, bias)

    monkeypatch.setattr(kernels, "ONEDNN", replace(kernels.PLAIN, name="picky", attend=picky))
    gateway = Gateway(Settings(model=str(loud), device="cpu", threads=1), "odd-1")
    await gateway.start()
    transport = httpx.ASGITransport(outer(gateway))

    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        answer = await client.post("/v1/encode", json={"inputs": ["All is well"]})
    await gateway.close()

    assert answer.status_code == 200, answer.text
    assert answer.json()["numerics"].startswith("cpu-fp32-plain-")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
async def test_half_precision_is_served_on_any_processor_and_promises_no_bits(dtype: Any) -> None:
    """Where the processor's own half-precision kernels follow the batch, close is what holds."""
    gateway = Gateway(Settings(threads=2, device="cpu", dtype=dtype), "half-1")
    await gateway.start()
    told = gateway.info()["numerics"]
    await gateway.close()

    assert told.endswith("-varying")
