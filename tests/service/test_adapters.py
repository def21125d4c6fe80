"""A service with LoRA adapters, through HTTP; transformers' model of merged weights is right.

Its checkpoint is jina-embeddings-v3's, which brings three of its own, for tasks.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import pytest_asyncio
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from model.errors import CheckpointError
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.packing import Sequence
from model.probes import Maps
from service.commands.options import add_setting_options
from service.pipeline.replica import Replica
from service.preflight.model import examine_models
from service.proof import numerics
from service.shapes.work import Outputs, Result, Work
from service.tables.settings import Settings
from service.tables.sources import load_settings
from tests.model.loading.test_adapters import LEFT, RIGHT, adapter
from tests.model.loading.test_families import saved, theirs
from tests.model.loading.test_jina_adapters import (
    INSTRUCTIONS,
    PASSAGE,
    QUERY,
    SEPARATION,
    TASKS,
    written,
)
from tests.served_model import Listen, Outer, Served, serve

NAMES = {None: "jina", **{name: f"jina:{name}" for name in (*TASKS, LEFT, RIGHT)}}
IDS = [[1, 4, 9, 16, 25, 36, 2], [1, 3, 5, 2], [1, *range(40, 70), 2]]
CLOSE = 1e-5


@dataclass(frozen=True)
class Adapted(Served):
    """The service, and a model of transformers' for each adapter and for none."""

    merged: dict[str | None, PreTrainedModel]

    def expected(self, name: str | None, ids: list[int]) -> NDArray[np.float32]:
        """The mean of the token vectors."""
        with torch.inference_mode():
            states = self.merged[name](input_ids=torch.tensor([ids])).last_hidden_state
        mean: NDArray[np.float32] = states[0].mean(0).numpy()
        return mean


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Adapted]:
    """Jina v3, and two adapters more, on a port of its own."""
    folder = tmp_path_factory.mktemp("jina")
    merged = written(folder, modules=False)
    reference = merged[None]
    merged |= {
        LEFT: adapter(reference, folder / LEFT, "jina_embeddings_v3", 1),
        RIGHT: adapter(reference, folder / RIGHT, "jina_embeddings_v3", 2, use_rslora=True),
    }
    named = (f"{LEFT}={folder / LEFT}", f"{RIGHT}={folder / RIGHT}")
    async with serve(folder, "jina", listen, outer, adapter=named) as one:
        yield Adapted(**vars(one), merged=merged)


def given(ids: list[int]) -> dict[str, Any]:
    """An input of token ids."""
    return {"token_ids": ids}


async def test_a_request_has_the_adapter_that_its_model_names(served: Adapted) -> None:
    """And all requests at once, in whatever batches, what each has alone, to the bit."""
    asked = [(name, ids) for name in NAMES for ids in IDS]
    bodies = [{"inputs": [given(ids)], "model": NAMES[name]} for name, ids in asked]
    alone = [(await served.post("/v1/encode", **body))["data"][0]["pooled"] for body in bodies]
    told = await asyncio.gather(*(served.post("/v1/encode", **body) for body in bodies * 2))

    for (name, ids), vector in zip(asked, alone, strict=True):
        np.testing.assert_allclose(vector, served.expected(name, ids), rtol=0, atol=CLOSE)
    assert [each["data"][0]["pooled"] for each in told] == alone * 2


async def test_evidence_has_the_adapter_in_every_text(served: Adapted) -> None:
    """Also in those that are made of a document."""
    model, query = NAMES[LEFT], "the sun"
    asked = {"query": query, "documents": ["the sun. The sea"], "method": "alone", "unit": "word"}
    (told,) = (await served.post("/v1/highlight", **asked, model=model, top=1))["results"]
    (best,) = told["highlights"]
    body = {"left": query, "right": [best["text"]], "form": "score", "model": model}
    (right,) = (await served.post("/v1/similarity", **body))["right"]
    assert right["score"] == best["share"]


async def test_a_batch_may_hold_every_adapter(served: Adapted) -> None:
    """One pass of a lane: vectors, states and what is shown by W^O are those of each work alone."""
    every = {layer: (0, 1, 2) for layer in range(2)}
    shown = [
        Selection(every, divide_into_units(len(ids)), "top", weight="value_norm") for ids in IDS
    ]
    outputs = [Outputs(tokens=True, hidden=frozenset({1}), probes=(Maps(one),)) for one in shown]
    works = [
        Work(Sequence(ids), out, adapter=name)
        for ids, out in zip(IDS, outputs, strict=True)
        for name in NAMES
    ]
    lanes = served.replica.lanes
    alone = [(await lanes.run_in_lane(0, [work], 1))[0] for work in works]
    together = await lanes.run_in_lane(0, works, 1)

    assert len({numbers(each)[0] for each in alone}) == len(works)
    assert [numbers(each) for each in together] == [numbers(each) for each in alone]


def numbers(result: Result | Exception) -> list[bytes]:
    """All bytes of a result."""
    assert isinstance(result, Result)
    assert result.tokens is not None
    shown = result.made[Maps.name]["heads"].values()
    heads = [each for one in shown for each in one.values()]
    return [array.tobytes() for array in (result.tokens, result.hidden[1], *heads)]


@pytest.mark.parametrize("name", [*TASKS, LEFT])
async def test_a_task_is_an_adapter_by_its_own_name(served: Adapted, name: str) -> None:
    """As if `model` named it, in every route that takes one."""
    by_model = {"model": NAMES[name]}
    for body in ({"inputs": ["the dog ate"]}, {"inputs": [given(IDS[0])], "layers": [0]}):
        found = await served.post("/v1/encode", **body, task=name)
        expected = await served.post("/v1/encode", **body, **by_model)
        assert [found.get(key) for key in SAID] == [expected.get(key) for key in SAID]
    found, expected = [
        (await served.post("/v1/embeddings", input="the dog", **way))["data"]
        for way in ({"model": "jina", "task": name}, by_model)
    ]
    assert found == expected
    found, expected = [
        await served.post("/v1/explain", text="the dog", layer=1, **way)
        for way in ({"task": name}, by_model)
    ]
    assert found == expected


SAID = ("model", "weights", "numerics", "space", "data")


@pytest.mark.parametrize("task", [QUERY, PASSAGE, SEPARATION])
async def test_a_tasks_instruction_goes_before_texts(served: Adapted, task: str) -> None:
    """And not before token ids, nor where the request names a prompt, nor without the task."""
    text, before = "cat", INSTRUCTIONS[task]
    shown = {"tokens": True, "pooled": True}
    asked, written_out = [
        (await served.encode(one, task=name, **shown))[0]
        for one, name in ((text, task), (before + text, SEPARATION))
    ]
    assert asked["token_ids"] == written_out["token_ids"]
    ids = asked["token_ids"]
    np.testing.assert_allclose(asked["pooled"], served.expected(task, ids), rtol=0, atol=CLOSE)
    (bare,) = await served.encode(given(ids), task=task)
    assert bare["pooled"] == asked["pooled"]


async def test_each_side_may_have_a_task(served: Adapted) -> None:
    """As a search has: the score is the cosine of both vectors, and its shares add up to it."""
    sides = {"left": QUERY, "right": PASSAGE}
    vectors = {
        side: (await served.encode("the dog ate", task=task))[0]["pooled"]
        for side, task in sides.items()
    }
    left, right = (np.array(vectors[side]) for side in sides)
    cosine = float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    texts = {"left": "the dog ate", "right": ["the dog ate"]}
    told = await served.post("/v1/similarity", **texts, task=sides)
    (one,) = told["right"]

    assert cosine < 0.999
    assert one["score"] == pytest.approx(cosine, abs=1e-6)
    assert np.sum(one["matrix"]) + one["rest"] == pytest.approx(cosine, abs=1e-6)
    assert told["model"] == NAMES[PASSAGE]
    (alike,) = (await served.post("/v1/similarity", **texts, task=QUERY))["right"]
    assert alike["score"] == pytest.approx(1, abs=1e-6)
    asked = {"query": "the dog ate", "documents": ["the dog ate"]}
    both = {"query": QUERY, "document": PASSAGE}
    (found,) = (await served.post("/v1/highlight", **asked, task=both))["results"]
    assert found["score"] == pytest.approx(cosine, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"task": "retrieval.qurey"}, 'did you mean "retrieval.query"'),
        ({"task": ""}, 'this model has "retrieval.query", "retrieval.passage", "separation", '),
        ({"task": QUERY, "model": "jina:separation"}, '"model" names another, "separation"'),
    ],
)
async def test_a_task_that_is_none_is_refused(
    served: Adapted, body: dict[str, str], said: str
) -> None:
    """With those that there are; by one side too, and before any work."""
    told = await served.post("/v1/encode", status=422, inputs=["dog"], **body)
    assert (told["code"], told["errors"][0]["loc"]) == ("out_of_range", ["task"])
    assert said in told["detail"]
    sides = {"task": {"left": body["task"], "right": QUERY}}
    more = {"left": "dog", "right": ["dog"], **body, **sides}
    await served.post("/v1/similarity", status=422, **more)


async def test_an_answer_names_its_adapter_and_its_own_weights(served: Adapted) -> None:
    """In its body and in the header; equal weights give equal bits, and these are others."""
    seen = set()
    for name in NAMES.values():
        answer = await served.http.post(
            "/v1/encode", json={"inputs": [given(IDS[0])], "model": name}
        )
        told = answer.json()
        assert told["model"] == name
        assert told["weights"] == answer.headers["x-headlight-weights"]
        seen.add((told["weights"], told["space"]))
    weights, spaces = map(set, zip(*seen, strict=True))
    assert len(weights) == len(spaces) == len(NAMES)


async def test_an_adapters_numerics_are_of_its_own_products(served: Adapted) -> None:
    """Their digest is that of its canary alone; in Python, where the model's may be compiled."""
    proof, device = served.replica.proof, torch.device("cpu")
    told = {}
    for name, model in NAMES.items():
        work = replace(proof.canary, adapter=name)
        (result,) = await served.replica.lanes.run_in_lane(0, [work], 1)
        assert isinstance(result, Result)
        kernels = served.replica.lanes.model.encoder.kernels.name
        native = "+native" if name is None and served.replica.lanes.model.encoder.native else ""
        own = numerics.name_arithmetic(device, torch.float32, kernels + native, result.tokens)
        answer = await served.post("/v1/encode", inputs=[given(IDS[0])], model=model)
        told[name] = answer["numerics"]
        assert told[name] == own
        shown = await served.post("/v1/explain", text="dog", layer=0, model=model)
        assert shown["numerics"] == own
    assert len(set(told.values())) == len(NAMES)


async def test_every_list_of_models_has_the_adapters(served: Adapted) -> None:
    """OpenAI's and GET /info; the Open Inference Protocol takes each in its path."""
    names = list(NAMES.values())
    for path in ("/v1/models", "/models"):
        assert [one["id"] for one in (await served.http.get(path)).json()["data"]] == names
    assert (await served.http.get("/info")).json()["adapters"] == names[1:]
    for name in names:
        assert (await served.http.get(f"/v1/models/{name}")).json()["id"] == name
        assert (await served.http.get(f"/v2/models/{name}")).json()["name"] == name
    tensor = {"name": "input_ids", "shape": [1, len(IDS[0])], "datatype": "INT64", "data": IDS[0]}
    answer = await served.http.post("/v2/models/jina:left/infer", json={"inputs": [tensor]})
    told = answer.json()
    vector = next(one["data"] for one in told["outputs"] if one["name"] == "pooled")
    assert told["model_name"] == "jina:left"
    np.testing.assert_allclose(vector, served.expected(LEFT, IDS[0]), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", ["left", "jina:", "jina:middle", "jina:left:right", ":left"])
async def test_a_name_of_no_adapter_is_refused(served: Adapted, name: str) -> None:
    """With the names that there are."""
    told = await served.post("/v1/encode", status=404, inputs=["dog"], model=name)

    assert told["code"] == "model_not_found"
    assert 'this service has "jina", "jina:retrieval.query", ' in str(told)


async def test_a_lesson_shows_the_adapters_weights(served: Adapted) -> None:
    """The steps of a layer are those of W + B A, and the service's own pass agrees."""
    shown = {
        name: await served.post("/v1/explain", text="the dog ate", layer=1, model=NAMES[name])
        for name in NAMES
    }
    hidden = {
        name: (await served.encode("the dog ate", model=NAMES[name], layers=[1, 2]))[0]
        for name in NAMES
    }

    for name, told in shown.items():
        assert told["model"] == NAMES[name]
        np.testing.assert_allclose(
            told["output"],
            hidden[name]["layers"]["2"],
            rtol=0,
            atol=1e-4,
        )


async def test_an_adapters_products_have_their_price(served: Adapted) -> None:
    """Two operations for each of its numbers and each token."""
    body = {"inputs": [given(IDS[0])]}
    flops = {
        name: (await served.post("/v1/encode?dry_run=true", **body, model=NAMES[name]))["flops"]
        for name in NAMES
    }
    for name, one in served.replica.lanes.model.adapters.items():
        assert one.products > 0
        assert flops[name] - flops[None] == 2 * one.products * len(IDS[0])


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"adapter": "left"}, "must be NAME=FOLDER such as"),
        ({"adapter": "a=/x,a=/y"}, "a different NAME for each"),
        ({"adapter": "a:b=/x"}, "must be NAME=FOLDER such as"),
        ({"adapter": "a=/x", "model": "preset:transformer-base"}, "cannot be used with a preset"),
    ],
)
async def test_settings_that_cannot_hold_are_refused(choices: dict[str, Any], said: str) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match=said):
        load_settings(choices, {})


async def test_the_doctor_reads_the_adapters_before_a_start(tmp_path: Path) -> None:
    """The weights of the model stay where they are; a folder that is missing is said too."""
    adapter(saved_bert(tmp_path), tmp_path / LEFT, "bert", 1, use_dora=True)
    own = {"model": str(tmp_path), "device": "cpu", "dtype": "float32"}

    _, found = examine_models([Settings(**own, adapter=(f"{LEFT}={tmp_path / LEFT}",))])
    assert "use_dora" in found.what
    (found,) = examine_models([Settings(**own, adapter=(f"{LEFT}=/nowhere",))])
    assert found.what == f"adapter {LEFT}: no folder /nowhere"


async def test_a_flag_may_be_given_once_for_each_adapter() -> None:
    """As well as once with commas; none is dropped."""
    command = add_setting_options(click.command()(lambda **given: given["adapter"]))

    def read(*line: str) -> Any:
        return command.main(list(line), standalone_mode=False)

    assert read("--adapter", "a=/x", "--adapter", "b=/y") == read("--adapter", "a=/x,b=/y")
    assert read() is None


def saved_bert(folder: Path) -> PreTrainedModel:
    """A BERT of random weights, saved to a folder."""
    reference = theirs("bert")
    saved(reference, folder)
    return reference


async def test_a_broken_adapter_ends_the_start(tmp_path: Path) -> None:
    """With the name of its folder."""
    saved(theirs("bert"), tmp_path)
    (tmp_path / LEFT).mkdir()
    settings = Settings(model=str(tmp_path), device="cpu", adapter=(f"{LEFT}={tmp_path / LEFT}",))

    with pytest.raises(CheckpointError, match=f"adapter {tmp_path / LEFT}: "):
        await Replica.start(settings, "broken")
