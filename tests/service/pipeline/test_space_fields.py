"""Every field of every request that encodes: what it does to the space of the answer's vectors."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import pytest_asyncio

from model.config import Task
from service import api
from service.shapes.answer import JSON
from service.shapes.call import ModelFacts as Known
from tests.bge_m3 import bge_m3
from tests.model.loading.test_adapters import adapter
from tests.replica_internals import pooled_by
from tests.served_model import Listen, Outer, Served, serve
from tests.space_fields import (
    A_TEXT,
    GIVEN,
    LONG_TEXT,
    SCORES,
    Effect,
    Fields,
    Spaces,
    body_of,
    changes_form,
    changes_space,
    fields,
    keeps_bits,
    names_no_space,
)
from tests.task_heads import checkpoint

DOES_ALL = Known(["m3"], get_args(Task), 2, 1 << 20, 64, ("query",))
PROMPTS = {"query": "Who ", "document": "A "}


def attention(**body: Any) -> Effect:
    """Maps next to the vectors."""
    return keeps_bits(attention=body)


def one(**item: Any) -> dict[str, Any]:
    """A request of one input."""
    return {"inputs": [{"text": LONG_TEXT, **item}]}


GATE, PATCH = {"layer": 0, "head": 1, "scale": 0.0}, {"layer": 0, "head": 1, "from": 0}
GATES = dict.fromkeys(
    ("gates", "gates.layer", "gates.head", "gates.scale"), names_no_space(gates=[GATE])
)
ENCODE: Fields = {
    **dict.fromkeys(("inputs", "inputs.text", "inputs.pair", "inputs.token_ids"), GIVEN),
    **dict.fromkeys(("inputs.token_type_ids", "inputs.embeddings"), GIVEN),
    **{f"inputs.embeddings.{name}": GIVEN for name in ("shape", "dtype", "data")},
    "inputs.spans": keeps_bits(**one(spans=[[0, 5]])),
    **{f"inputs.{name}": names_no_space(**one(gates=[GATE])) for name in GATES},
    **{
        f"inputs.patch{name}": names_no_space(
            inputs=[LONG_TEXT, {"text": LONG_TEXT, "patch": [PATCH]}]
        )
        for name in ("", ".layer", ".head", ".from")
    },
    **GATES,
    "model": changes_space(model="m3:lora"),
    "task": changes_space(task="lora"),
    "prompt_name": changes_space(prompt_name="query"),
    "truncate": changes_space(truncate="left"),
    "pooled": changes_space(pooled=False, tokens=True),
    "pooled.mode": changes_space(pooled={"mode": "max"}),
    "pooled.normalize": changes_space(pooled={"mode": "mean", "normalize": False}),
    "pooled.dimensions": changes_space(pooled={"mode": "mean", "dimensions": 8}),
    "pooled.precision": changes_form(pooled={"mode": "mean", "precision": "binary"}),
    "tokens": keeps_bits(tokens=True),
    "layers": names_no_space(layers=[0]),
    "attention": attention(),
    "attention.layers": attention(layers=[1]),
    "attention.heads": attention(heads=[1]),
    "attention.form": attention(form="rollout"),
    "attention.rows": attention(form="rows", rows=[1]),
    "attention.k": attention(form="top", k=2),
    "attention.size": attention(form="blocks", size=2),
    "attention.segments": attention(form="mean", segments=[[1, 2]]),
    "attention.weight": attention(form="top", weight="value_norm"),
    "attention.level": attention(level="word"),
    "attention.specials": attention(specials="drop"),
    "attention.dtype": attention(dtype="float16"),
    "sweep": keeps_bits(sweep={}),
    "sweep.layers": keeps_bits(sweep={"layers": [1]}),
    "sweep.heads": keeps_bits(sweep={"heads": [1]}),
    "sweep.scale": keeps_bits(sweep={"scale": 2.0}),
    "classify": keeps_bits("classes", classify=True),
    "classify.activation": keeps_bits("classes", classify={"activation": "none"}),
    "reason": keeps_bits("classes", classify=True, reason={}),
    **{
        f"reason.{name}": keeps_bits("classes", classify=True, reason={name: value})
        for name, value in (("method", "input"), ("level", "token"))
    },
    "label_tokens": keeps_bits("labels", label_tokens=True),
    "label_tokens.level": keeps_bits("labels", label_tokens={"level": "word"}),
    "sparse": keeps_bits(sparse=True),
    "sparse.k": keeps_bits(sparse={"k": 2}),
    "sparse.threshold": keeps_bits(sparse={"threshold": 0.1}),
    "sparse.role": changes_space(sparse={"role": "query"}),
    "multi_vector": changes_space(multi_vector=True),  # a document's prompt
    "multi_vector.role": changes_space(multi_vector={"role": "query"}),
    "encoding": changes_form(encoding="base64"),
    "dtype": changes_form(dtype="float16"),
}
QUERY = ("text", "pair", "token_ids", "token_type_ids", "spans", "patch", "embeddings")
QUERY += tuple(f"embeddings.{name}" for name in ("shape", "dtype", "data"))
QUERY += tuple(f"patch.{name}" for name in ("layer", "head", "from"))
HIGHLIGHT: Fields = {
    **dict.fromkeys(("query", "documents", "documents.text"), GIVEN),
    **{f"query.{name}": GIVEN for name in QUERY},
    **{f"query.{name}": names_no_space(query={"text": A_TEXT, "gates": [GATE]}) for name in GATES},
    **GATES,
    "unit": keeps_bits(unit="word"),
    "method": keeps_bits(method="occlusion"),
    "top": keeps_bits(top=1),
    "prune": keeps_bits(prune=0.5),
    "control": keeps_bits(control=False),
    "model": changes_space(model="dense:lora"),
    "prompt_name": changes_space(prompt_name="query"),
    "prompt_name.query": keeps_bits(prompt_name={"query": "query"}),
    "prompt_name.document": changes_space(prompt_name={"document": "document"}),
    "task": changes_space(task="lora"),
    "task.query": keeps_bits(task={"query": "lora"}),
    "task.document": changes_space(task={"document": "lora"}),
    "truncate": changes_space(truncate="left"),
}
OWN: Spaces = {
    "/v1/encode": (
        {"inputs": [LONG_TEXT], "truncate": "right", "pooled": {"mode": "mean"}},
        ENCODE,
    ),
    "/v1/highlight": (
        {"query": A_TEXT, "documents": [LONG_TEXT], "truncate": "right"},
        {field: effect and effect._replace(model="dense") for field, effect in HIGHLIGHT.items()},
    ),
}
ROOT = Path(__file__).parents[3]
TESTED = sorted((ROOT / "tests" / "service" / "api").rglob("test_*.py"))
ROUTES: Spaces = {route.path: SCORES for route in api.ROUTES if route.parse} | OWN
for test in TESTED:
    if "\nSPACE: " in test.read_text():
        name = ".".join(test.relative_to(ROOT).with_suffix("").parts)
        ROUTES |= import_module(name).SPACE
STATED = [
    pytest.param(path, field, id=f"{path} {field}")
    for path, told in ROUTES.items()
    if told is not SCORES
    for field, effect in told[1].items()
    if effect is not GIVEN
]


def test_every_field_says_what_it_does_to_the_space() -> None:
    """Of every route that answers vectors; a new one must say it before it is taken."""
    assert {*ROUTES} == {route.path for route in api.ROUTES if route.parse}
    for path, told in ROUTES.items():
        if told is not SCORES:
            assert {*told[1]} == {*fields(body_of(path)["schema"])}, path


# whose question asks first for a head that this model has not; their own tests look at the header
DECIDE = {route.path for route in api.ROUTES if route.task == "decide"}


@pytest.mark.parametrize(
    "path", [path for path, told in ROUTES.items() if told is SCORES and path not in DECIDE]
)
def test_an_answer_of_scores_names_no_space(
    path: str, served: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked."""
    parse = next(route.parse for route in api.ROUTES if route.path == path)
    sent = SimpleNamespace(headers={}, media_type=None, ignored={})
    gateway = served["m3"].replica.gateway
    # which this model may not have
    monkeypatch.setattr(gateway.resolver, "tasks", lambda *_: ())
    monkeypatch.setattr(gateway.resolver, "adapter", lambda *_: None)
    example = next(iter(body_of(path)["examples"].values()))["value"]
    call = parse(json.dumps(example).encode(), sent, DOES_ALL) if parse else None
    with pooled_by(served["m3"].replica, "mean"):
        assert call and not gateway.question(call.request).sides[-1].vectors


def _adapters(folder: Path) -> tuple[str, ...]:
    return tuple(f"{path.name}={path}" for path in folder.glob("lora"))


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[dict[str, Served]]:
    """Models with prompts and an adapter, of three kinds of vectors and one; two with heads."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("m3", "dense", "classes", "labels")}
    for name in ("m3", "dense"):
        made = bge_m3(folders[name])
        told = json.dumps({"prompts": PROMPTS})
        (folders[name] / "config_sentence_transformers.json").write_text(told)
        adapter(made.model, folders[name] / "lora", "xlm-roberta", 1)
    for linear in ("sparse_linear", "colbert_linear"):
        (folders["dense"] / f"{linear}.safetensors").unlink()
    checkpoint(folders["classes"], "ForSequenceClassification", num_labels=3)
    checkpoint(folders["labels"], "ForTokenClassification", num_labels=3)
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                serve(folder, name, listen, outer, adapter=_adapters(folder))
            )
            for name, folder in folders.items()
        }


@pytest.fixture(scope="module")
def answered() -> dict[tuple[str, str], tuple[str | None, Any]]:
    """What a model has answered to the plain request of a route."""
    return {}


async def ask(served: Served, path: str, body: dict[str, Any]) -> tuple[str | None, Any]:
    """The space that an answer names, and its vectors as they are written."""
    url = path.format(model="m3", version=1)
    answer = await served.http.post(url, json=body)
    assert answer.status_code == 200, answer.text
    space = answer.headers.get("x-headlight-space")
    if answer.headers["content-type"] != JSON:
        return space, None
    match told := answer.json():
        case {"data": [{"pooled": vectors}]} | {"data": [{"embedding": vectors}]}:
            assert told.get("space", space) == space and ("space" in told) <= (space is not None)
        case {"embeddings": vectors} | {"outputs": [{"name": "pooled", "data": vectors}, *_]}:
            pass
        case {"results": _}:
            vectors = None  # scores that the vectors make
            assert told.get("space") == space
        case _:
            vectors = told
    return space, vectors


@pytest.mark.parametrize(("path", "field"), STATED)
async def test_what_changes_a_vector_changes_its_space(
    served: dict[str, Served],
    answered: dict[tuple[str, str], tuple[str | None, Any]],
    path: str,
    field: str,
) -> None:
    """Or the answer names none; what changes no bit keeps the space."""
    told = ROUTES[path]
    assert told is not SCORES
    plain, effect = told[0], told[1][field]
    assert effect is not GIVEN
    if (effect.model, path) not in answered:
        answered[effect.model, path] = await ask(served[effect.model], path, plain)
    space, vectors = answered[effect.model, path]
    changed, moved = await ask(served[effect.model], path, plain | effect.body)

    assert space is not None
    match effect.kind:
        case "nothing":
            assert (changed, moved) == (space, vectors)
        case "changed":
            assert changed not in (None, space) and (vectors is None or moved != vectors)
        case "form":
            assert changed == space
        case "none":
            assert changed is None
