"""GET /v1/models, as clients of OpenAI and of TypeSafe read it."""

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI
from typesafe_sdk import AsyncTypeSafeClient, ListModelsResponse, TypeSafeClient

from service.cluster.choose_model import MODELS_HEADER, NAMES_HEADER
from service.files.weights import locate_model
from service.pipeline.replica import Replica
from tests.served_model import Listen, Outer, serve
from tests.task_heads import checkpoint

NAME = "all-MiniLM-L6-v2"


@pytest.mark.client("typesafe-sdk", "models")
async def test_one_document_answers_both_clients(address: str, replica: Replica) -> None:
    """Whichever way it asks."""

    def ask() -> ListModelsResponse:
        with TypeSafeClient(base_url=address, api_key="none") as client:
            return client.models.list()

    told = await asyncio.to_thread(ask)
    async with AsyncTypeSafeClient(base_url=address, api_key="none") as client:
        assert (await client.models.list()).models == told.models
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as theirs:
        assert [model.id async for model in await theirs.models.list()] == [NAME]

    (model,) = told.models
    assert (model.name, model.release_date) == (NAME, replica.released)
    assert model.description == "A transformer encoder, for the tasks encode."


def test_the_date_is_that_of_the_newest_weights_file(tmp_path: Path) -> None:
    """In UTC, wherever below the folder it lies; a configuration that is newer changes nothing."""
    checkpoint(tmp_path, "ForSequenceClassification", num_labels=1)
    (weights,) = tmp_path.glob("*.safetensors")
    (tmp_path / "0_part").mkdir()
    (tmp_path / "0_part" / "model.safetensors").write_bytes(b"")
    for file, day in ((weights, 14), (tmp_path / "0_part" / "model.safetensors", 15)):
        moment = datetime(2026, 9, day, 23, 30, tzinfo=UTC).timestamp()
        os.utime(file, (moment, moment))

    assert locate_model(str(tmp_path)).released == "2026-09-15"


async def test_what_decides_by_inference_says_that_it_is_not_calibrated(
    tmp_path: Path, listen: Listen, outer: Outer
) -> None:
    """In TypeSafe's description, of each of its names."""
    labels = dict(enumerate(("contradiction", "entailment", "neutral")))
    numbers = {label: number for number, label in labels.items()}
    checkpoint(tmp_path, "ForSequenceClassification", id2label=labels, label2id=numbers)
    async with serve(tmp_path, "nli", listen, outer) as served:
        (told,) = (await served.http.get("/v1/models")).json()["models"]

    assert told["name"] == "nli"
    assert told["description"].endswith("nobody has calibrated its probabilities for that.")


async def test_all_models_of_an_address_are_described(client: httpx.AsyncClient) -> None:
    """As HAProxy tells of them: with their adapters, and one that has not started."""
    told = {
        NAMES_HEADER: f"{NAME}, laya, laya:law, *",
        MODELS_HEADER: f"{NAME} / encode 2026-09-15 1, laya /laya encode+decide 2026-11-29 1,"
        " new /new   0",
    }
    answer = (await client.get("/v1/models", headers=told)).json()

    assert [model["id"] for model in answer["data"]] == [NAME, "laya", "laya:law"]
    assert [(model["name"], model["release_date"]) for model in answer["models"]] == [
        (NAME, "2026-09-15"),
        ("laya", "2026-11-29"),
        ("laya:law", "2026-11-29"),
    ]
    assert answer["models"][1]["description"].endswith("its own temperatures make.")
    assert answer["models"][1]["description"] == answer["models"][2]["description"]
    assert json.dumps(answer["models"][0]["description"]).count("decide") == 0
