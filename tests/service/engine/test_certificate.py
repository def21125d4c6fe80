"""service/engine/certificate.py, and what an int8 replica says and refuses."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import torch
from numpy.typing import NDArray
from starlette.types import ASGIApp

from model import int8, kernels
from model.loading.checkpoint import Model
from service.engine import certificate
from service.engine.certificate import TooFar, certify, quantise, vectors
from service.engine.loading import load
from service.engine.weights import BUNDLED, locate
from service.heads.samples import halves
from service.heads.sentences import bundled
from service.replica import Replica
from service.settings import Settings
from tests.task_heads import checkpoint

CPU = torch.device("cpu")
PLACES = 5e-7  # of a certificate's numbers, half of the last

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.vnni,
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small() -> AsyncIterator[Replica]:
    """The bundled model in int8, two lanes."""
    replica = await Replica.start(Settings(device="cpu", threads=2, dtype="int8"), "int8-1")
    yield replica
    await replica.close()


@pytest.fixture(scope="module")
def plain() -> Model:
    """The bundled model in float32, by plain kernels."""
    return load(locate(BUNDLED), CPU, torch.float32, kernels.PLAIN)


def cosines(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every row with every other."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The place of each value in their order."""
    places = np.empty(len(values))
    places[np.argsort(values)] = np.arange(len(values))
    return places


async def test_the_certificate_is_what_float64_finds(small: Replica, plain: Model) -> None:
    """From the vectors of both models, each number by its definition."""
    _, texts = halves()
    with torch.inference_mode():
        pair = [vectors(model, texts).double().numpy() for model in (small.lanes.model, plain)]
    ours, theirs = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in pair)
    each = np.sum(ours * theirs, axis=1)
    among = [cosines(rows) for rows in pair]
    upper = np.triu_indices(len(texts), 1)
    order = np.corrcoef(ranks(among[0][upper]), ranks(among[1][upper]))[0, 1]
    for one in among:
        np.fill_diagonal(one, -2)
    nearest = [[set(np.argsort(-row)[:10]) for row in one] for one in among]
    kept = np.mean([len(one & other) / 10 for one, other in zip(*nearest, strict=True)])

    told = small.info()["certificate"]

    assert told["texts"] == len(texts) and told["neighbours"] == 10 and told["bound"] == 0.99
    assert told["worst_cosine"] == pytest.approx(each.min(), abs=PLACES)
    assert told["mean_cosine"] == pytest.approx(each.mean(), abs=PLACES)
    assert told["rank_correlation"] == pytest.approx(order, abs=PLACES)
    assert told["neighbour_overlap"] == pytest.approx(kept, abs=PLACES)
    assert told["worst_cosine"] >= 0.99


async def test_the_certificate_holds_for_texts_of_another_kind(
    small: Replica, plain: Model
) -> None:
    """An essay, code, dates, addresses and single words."""
    lines = (Path(__file__).parents[2] / "model" / "texts.txt").read_text("utf-8").splitlines()
    texts = [line for line in lines if line]
    with torch.inference_mode():
        ours, theirs = (vectors(model, texts) for model in (small.lanes.model, plain))

    assert certificate.cosines(ours, theirs).min() >= certificate.BOUND


async def test_no_text_that_is_held_out_gave_a_scale() -> None:
    """Nor one of its group, which differs from it in a word."""
    scales, held = halves()
    group = {sentence.text: sentence.group for sentence in bundled().sentences}
    sides = [{group[text] for text in side if text in group} for side in (scales, held)]

    assert not set(scales) & set(held)
    assert sides[0] and sides[1] and not sides[0] & sides[1]


async def test_int8_has_a_name_of_its_own_and_its_bits_are_promised(
    small: Replica, replica: Replica
) -> None:
    """Neither weights nor numerics are float32's, by which caches and clients tell them apart."""
    told, other = small.info(), replica.info()

    assert (told["dtype"], other["dtype"]) == ("int8", "float32")
    assert told["numerics"].startswith("cpu-int8-onednn") and "certificate" not in other
    assert told["weights"] != other["weights"]
    assert small.proof.fixed and not told["numerics"].endswith("-varying")


async def test_the_same_text_has_the_same_bits_alone_and_in_a_batch(
    small: Replica, outer: Callable[[Replica], ASGIApp]
) -> None:
    """Its vector, its tokens' vectors and its maps."""
    text, asked = "A dog ate the food", {"tokens": True, "attention": {"layers": [0, 5]}}
    others = [" ".join(["word"] * count) for count in (1, 3, 20, 60)]
    transport = httpx.ASGITransport(outer(small))

    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        bodies = [{"inputs": inputs, **asked} for inputs in ([text], [*others, text])]
        answers = [await client.post("/v1/encode", json=body) for body in bodies]

    alone, together = (answer.json()["data"][-1] for answer in answers)
    assert alone.keys() >= {"pooled", "token_vectors", "attention"}
    assert alone == together


async def test_steps_that_would_be_float32s_are_refused(
    small: Replica, outer: Callable[[Replica], ASGIApp]
) -> None:
    """POST /v1/explain computes from plain weights."""
    transport = httpx.ASGITransport(outer(small))

    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        answer = await client.post("/v1/explain", json={"text": "All is well", "layer": 0})

    assert answer.status_code == 422
    assert "float32's, and this model runs in int8" in answer.json()["detail"]


@pytest.mark.parametrize("place", [3, 13])
async def test_below_the_bound_the_linear_to_blame_is_named(plain: Model, place: int) -> None:
    """The one that was spoilt."""
    scales, held = (half[:24] for half in halves())
    model = load(locate(BUNDLED), CPU, torch.int8, texts=scales)
    site = list(int8.sites(model.encoder))[place]
    assert isinstance(site.linear, int8.Int8Linear)
    site.linear.scales = site.linear.scales * 1.7

    with pytest.raises(TooFar) as refused:
        certify(model, plain, held)

    assert str(refused.value).startswith(
        "dtype int8: the worst cosine to float32 of 24 texts is 0."
    )
    assert f"most is lost in {site.name}: with it in float32" in str(refused.value)


async def test_a_model_with_a_task_head_is_refused(tmp_path: Path) -> None:
    """Nothing certifies what its head makes of the vectors."""
    checkpoint(tmp_path, "ForSequenceClassification")

    with pytest.raises(TooFar, match="certified of vectors alone"):
        load(locate(str(tmp_path)), CPU, torch.int8)


async def test_a_tokenizer_that_reads_no_english_is_refused() -> None:
    """Scales and certificate would be those of [UNK] alone, and hold for no text of its own."""
    model = load(locate(BUNDLED), CPU, torch.float32)

    def unread(texts: Any, *cut: Any) -> Any:
        return [
            replace(one, token_ids=[101, *[100] * (len(one.token_ids) - 2), 102])
            for one in model.tokenizer(texts, *cut)
        ]

    blind = replace(model, tokenizer=unread)  # type: ignore[arg-type]
    with pytest.raises(TooFar, match="tells few of the bundled English texts apart"):
        quantise(blind, halves()[0])
