"""Which kernels a model is loaded with, and whether the compiled pass runs its layers."""

import logging
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from starlette.types import ASGIApp

from model import kernels
from model.decider import Decider
from model.encoder import Encoded
from model.loading.checkpoint import Model
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.native import library, stack
from model.packing import Sequence
from model.probes import Maps, Steps
from service.engine.arrays import NonFiniteOutput
from service.engine.lanes import Lanes
from service.files import loading
from service.files.loading import load_model, use_compiled_pass
from service.files.weights import locate_model
from service.pipeline.replica import Replica
from service.shapes.work import Outputs, Result, Work
from service.tables.settings import Settings
from tests.laya_models import make_laya

CPU = torch.device("cpu")


async def test_a_head_that_fast_kernels_do_not_take_is_answered_by_the_plain_ones(
    loud: Path, outer: Callable[[Replica], ASGIApp], monkeypatch: pytest.MonkeyPatch
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


@pytest.fixture
def small(loud: Path) -> Model:
    """A small BERT as it is loaded, before anything was proved of it."""
    return load_model(locate_model(str(loud)), CPU, torch.float32)


@pytest.fixture
def built() -> None:
    """The compiled pass; skips where there is none."""
    try:
        library.load_operator()
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")


async def test_the_compiled_pass_runs_once_it_has_agreed(
    small: Model, built: None, caplog: pytest.LogCaptureFixture
) -> None:
    """What `numerics` then says, without a word in the log."""
    assert small.encoder.arithmetic == "onednn"

    use_compiled_pass(small)

    assert small.encoder.arithmetic == "onednn+native"
    assert caplog.text == ""


async def test_the_layers_of_a_head_run_in_the_compiled_pass_too(
    tmp_path: Path, built: None
) -> None:
    """Of one that decides; a head without layers has none to run."""
    natives = []
    for layers in (0, 1):
        folder = make_laya(tmp_path / str(layers), width=12, head_layers=layers)
        model = load_model(locate_model(str(folder)), CPU, torch.float32)
        use_compiled_pass(model)
        (head,) = model.task_heads
        assert isinstance(head, Decider)
        natives.append((model.encoder.native, head.layers and head.layers.native))

    assert natives[0][0] and natives[0][1] is None
    assert all(natives[1])


def absent() -> None:
    """An operator that was not built."""
    raise library.OperatorMissing("it is not built, and torch is 0")


class Other(stack.NativeStack):
    """An operator that computes something else."""

    def __call__(self, *batch: Any) -> Encoded:
        encoded = super().__call__(*batch)
        return replace(encoded, last=encoded.last * (1 + 1e-6))


class Changed(stack.NativeStack):
    """An operator whose kernels torch has changed."""

    def __call__(self, *batch: Any) -> Encoded:
        raise RuntimeError("no such schema")


@pytest.mark.parametrize(
    ("name", "instead", "reason"),
    [
        ("library.load_operator", absent, "it is not built"),
        ("stack.NativeStack", Other, "its bits differ from the loop's"),
        ("stack.NativeStack", Changed, "no such schema"),
    ],
    ids=["none", "other bits", "other kernels"],
)
async def test_without_a_right_compiled_pass_the_loop_serves_and_a_line_says_so(
    small: Model,
    built: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    instead: Any,
    reason: str,
) -> None:
    """What is lost, why, and where to read how to get it."""
    module, attribute = name.split(".")
    monkeypatch.setattr(getattr(loading, module), attribute, instead)
    # what the import of the kernels has found by then
    monkeypatch.setattr(kernels, "COMPILED", instead is not absent)

    with caplog.at_level(logging.WARNING):
        use_compiled_pass(small)

    (line,) = caplog.records
    assert line.getMessage() == loading.PASS_MISSING and "docs/deploy.md" in loading.PASS_MISSING
    assert reason in vars(line)["reason"]
    assert (small.encoder.native, small.encoder.arithmetic) == (None, "onednn")


async def test_scores_by_content_and_distance_are_left_to_the_loop(
    small: Model, built: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator has none; the line says so, not that one is missing."""
    monkeypatch.setattr(small.encoder.layers[0].attention, "distances", object())

    with caplog.at_level(logging.INFO):
        use_compiled_pass(small)

    (line,) = caplog.records
    assert (line.getMessage(), line.levelname) == (loading.PASS_UNFIT, "INFO")
    assert vars(line)["reason"] == "it adds nothing to scores by distance"
    assert small.encoder.native is None


async def test_the_compiled_pass_names_the_same_first_wrong_state(
    small: Model, built: None, caplog: pytest.LogCaptureFixture
) -> None:
    """NaN that comes in, and NaN that arises in each layer; what is right near it is answered."""
    works = [
        Work(Sequence([101, 102]), Outputs(tokens=True, pooling=small.pooling)),
        Work(Sequence(embeddings=torch.full((3, 37), torch.nan)), Outputs()),
    ]

    def wrong() -> list[int | None]:
        results = Lanes(small, []).run_batch(works, 1)
        return [each.layer if isinstance(each, NonFiniteOutput) else None for each in results]

    def both() -> list[list[int | None]]:
        native, small.encoder.native = small.encoder.native, None
        looped = wrong()
        small.encoder.native = native
        return [looped, wrong()]

    use_compiled_pass(small)
    assert both() == [[None, 0]] * 2
    for layer in (1, 0):
        bias = small.encoder.layers[layer].norms.after[1]
        assert bias is not None
        bias[5] = torch.nan
        assert both() == [[layer + 1, 0]] * 2


@pytest.mark.parametrize("asked", ["high", "medium"])
async def test_float32_is_multiplied_as_float32(loud: Path, asked: str) -> None:
    """Without TF32 or bfloat16 inside, even if they were set before, as by torch's own variable."""
    torch.set_float32_matmul_precision(asked)
    try:
        load_model(locate_model(str(loud)), CPU, torch.float32)
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")


async def test_the_compiled_pass_answers_with_the_loops_bits(small: Model, built: None) -> None:
    """A whole answer of a batch of different wishes, each number of it."""
    selection = Selection({0: (0,), 1: (0,)}, divide_into_units(7))
    wishes = [
        Outputs(pooling=small.pooling, tokens=True),
        Outputs(hidden=frozenset({0, 2}), probes=(Maps(selection), Steps(1))),
        Outputs(pooling=replace(small.pooling, modes=("max", "weightedmean"), dimensions=41)),
        Outputs(pooling=small.pooling),
    ]
    works = [Work(Sequence([101, *range(2000, 2005), 102]), wish) for wish in wishes]
    lanes = Lanes(small, [])

    looped = lanes.run_batch(works, 1)
    use_compiled_pass(small)
    assert small.encoder.native

    for one, other in zip(looped, lanes.run_batch(works, 1), strict=True):
        assert isinstance(one, Result) and isinstance(other, Result)
        assert pickle.dumps(one) == pickle.dumps(other)
