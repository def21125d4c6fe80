"""A service of Jina's BERT with ALiBi, through HTTP; transformers' BERT with slopes is right."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
import torch

from tests.model.loading.test_jina_bert import JinaBert, theirs, written
from tests.served import Listen, Outer, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLOSE = 1e-5
IDS = [[1, 4, 9, 16, 25, 36, 2], [1, 3, 5, 2], [1, *range(40, 70), 2]]


@pytest.fixture(scope="module")
def reference() -> JinaBert:
    """Random weights."""
    return theirs()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    tmp_path_factory: pytest.TempPathFactory, reference: JinaBert, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """The same model on a port of its own."""
    folder = written(tmp_path_factory.mktemp("jina"), reference)
    async with serve(folder, "jina", listen, outer) as one:
        yield one


async def test_vectors_and_maps_are_those_of_its_formulas(
    served: Served, reference: JinaBert
) -> None:
    """Pooled by the mean, and every head of a layer."""
    asked = {"form": "full", "heads": {"1": [0, 1, 2]}}
    for ids in IDS:
        told = await served.post("/v1/encode", inputs=[{"token_ids": ids}], attention=asked)
        with torch.inference_mode():
            out = reference(input_ids=torch.tensor([ids]), output_attentions=True)
        (one,) = told["data"]
        mean = out.last_hidden_state[0].mean(0)
        np.testing.assert_allclose(one["pooled"], mean.numpy(), rtol=0, atol=CLOSE)
        for head, found in one["attention"]["maps"]["1"].items():
            expected = out.attentions[1][0, int(head)].numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)
        assert len(one["attention"]["maps"]["1"]) == 3


async def test_a_request_has_the_same_bits_in_any_company(served: Served) -> None:
    """All at once, what each has alone; with a head left out too."""
    gate = [{"layer": 1, "head": 2, "scale": 0.0}]
    bodies = [
        {"inputs": [{"token_ids": ids}], "gates": gates} for ids in IDS for gates in ([], gate)
    ]
    alone = [(await served.post("/v1/encode", **body))["data"][0]["pooled"] for body in bodies]
    told = await asyncio.gather(*(served.post("/v1/encode", **body) for body in bodies * 4))

    assert [each["data"][0]["pooled"] for each in told] == alone * 4
    assert len({tuple(vector) for vector in alone}) == len(bodies)
