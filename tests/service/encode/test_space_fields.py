"""Every field of every request that encodes: what it does to the space of the answer's vectors."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args

import pytest
import pytest_asyncio

from model.config import Task
from service import api
from service.api.dialect import Served as Known
from service.api.document import document
from service.encode.answer import JSON
from service.encode.resolver import Resolver
from tests.bge_m3 import bge_m3
from tests.model.loading.test_adapters import adapter
from tests.seams import pooled_by
from tests.served import Listen, Outer, Served, serve
from tests.task_heads import checkpoint

TEXT = "A dog ate the food, and then the dog slept: the food was the dog's. "
LONG = TEXT * 5  # more than the model reads, so that it counts how it is cut
DOES_ALL = Known(["m3"], get_args(Task), 2, 1 << 20, 64, ("query",))
PROMPTS = {"query": "Who ", "document": "A "}


class Does(NamedTuple):
    """What a field does to the vectors of an answer, and a request that shows it.

    Args:
        kind: it moves no bit of them; they are of another space; the answer names none; or they
            are the same numbers in another form.
        body: what is put into the route's plain request.
        model: that has what is asked for.
    """

    kind: Literal["nothing", "another", "none", "form"]
    body: dict[str, Any]
    model: str = "m3"


Fields = dict[str, "Does | None"]


def nothing(*args: Any, **body: Any) -> Does:
    """The same bits of the same space."""
    return Does("nothing", body, *args)


def another(**body: Any) -> Does:
    """Vectors of another space."""
    return Does("another", body)


def none(**body: Any) -> Does:
    """Vectors of no space."""
    return Does("none", body)


def form(**body: Any) -> Does:
    """The same vectors in other numbers."""
    return Does("form", body)


def attention(**body: Any) -> Does:
    """Maps next to the vectors."""
    return nothing(attention=body)


def one(**item: Any) -> dict[str, Any]:
    """A request of one input."""
    return {"inputs": [{"text": LONG, **item}]}


GIVEN = None  # what is encoded: it makes the vector, and not its space
GATE, PATCH = {"layer": 0, "head": 1, "scale": 0.0}, {"layer": 0, "head": 1, "from": 0}
GATES = dict.fromkeys(("gates", "gates.layer", "gates.head", "gates.scale"), none(gates=[GATE]))
ENCODE: Fields = {
    **dict.fromkeys(("inputs", "inputs.text", "inputs.pair", "inputs.token_ids"), GIVEN),
    **dict.fromkeys(("inputs.token_type_ids", "inputs.embeddings"), GIVEN),
    **{f"inputs.embeddings.{name}": GIVEN for name in ("shape", "dtype", "data")},
    "inputs.spans": nothing(**one(spans=[[0, 5]])),
    **{f"inputs.{name}": none(**one(gates=[GATE])) for name in GATES},
    **{
        f"inputs.patch{name}": none(inputs=[LONG, {"text": LONG, "patch": [PATCH]}])
        for name in ("", ".layer", ".head", ".from")
    },
    **GATES,
    "model": another(model="m3:lora"),
    "task": another(task="lora"),
    "prompt_name": another(prompt_name="query"),
    "truncate": another(truncate="left"),
    "pooled": another(pooled=False, tokens=True),
    "pooled.mode": another(pooled={"mode": "max"}),
    "pooled.normalize": another(pooled={"mode": "mean", "normalize": False}),
    "pooled.dimensions": another(pooled={"mode": "mean", "dimensions": 8}),
    "pooled.precision": form(pooled={"mode": "mean", "precision": "binary"}),
    "tokens": nothing(tokens=True),
    "layers": none(layers=[0]),
    "attention": attention(),
    "attention.layers": attention(layers=[1]),
    "attention.heads": attention(heads=[1]),
    "attention.form": attention(form="rollout"),
    "attention.rows": attention(form="rows", rows=[1]),
    "attention.k": attention(form="top", k=2),
    "attention.size": attention(form="blocks", size=2),
    "attention.weight": attention(form="top", weight="value_norm"),
    "attention.level": attention(level="word"),
    "attention.specials": attention(specials="drop"),
    "attention.dtype": attention(dtype="float16"),
    "sweep": nothing(sweep={}),
    "sweep.layers": nothing(sweep={"layers": [1]}),
    "sweep.heads": nothing(sweep={"heads": [1]}),
    "sweep.scale": nothing(sweep={"scale": 2.0}),
    "classify": nothing("classes", classify=True),
    "classify.activation": nothing("classes", classify={"activation": "none"}),
    "label_tokens": nothing("labels", label_tokens=True),
    "label_tokens.level": nothing("labels", label_tokens={"level": "word"}),
    "sparse": nothing(sparse=True),
    "sparse.k": nothing(sparse={"k": 2}),
    "sparse.threshold": nothing(sparse={"threshold": 0.1}),
    "sparse.role": another(sparse={"role": "query"}),
    "multi_vector": another(multi_vector=True),  # a document's prompt
    "multi_vector.role": another(multi_vector={"role": "query"}),
    "encoding": form(encoding="base64"),
    "dtype": form(dtype="float16"),
}
EMBEDDINGS: Fields = {
    **dict.fromkeys(("input", "input.text"), GIVEN),
    "model": another(model="m3:lora"),
    "encoding_format": form(encoding_format="base64"),
    "dimensions": another(dimensions=8),
    "truncate": another(truncate="left"),
    "user": nothing(user="me"),
    "normalized": another(normalized=False),
    "task": another(task="retrieval.query"),
    "prompt_name": another(prompt_name="query"),
    "input_type": another(input_type="query"),
    "truncate_prompt_tokens": another(truncate_prompt_tokens=9),
    "late_chunking": nothing(late_chunking=False),
    "return_multivector": nothing(return_multivector=False),
    "add_special_tokens": nothing(add_special_tokens=True),
    "embed_dtype": nothing(embed_dtype="float32"),
    "endianness": nothing(endianness="little"),
    "modality": nothing(modality="text"),
}
EMBED_ALL: Fields = {
    "inputs": GIVEN,
    "truncate": nothing(truncate=True),
    "truncation_direction": another(truncation_direction="Left"),
    "prompt_name": another(prompt_name="query"),
}
EMBED = {
    **EMBED_ALL,
    "normalize": another(normalize=False),
    "dimensions": another(dimensions=8),
}
COHERE: Fields = {
    "texts": GIVEN,
    "model": another(model="m3:lora"),
    "input_type": another(input_type="search_query"),
    "embedding_types": form(embedding_types=["int8"]),
    "output_dimension": another(output_dimension=8),
    "truncate": another(truncate="START"),
    "max_tokens": another(max_tokens=5),
    "priority": nothing(priority=1),
    "images": nothing(images=None),
}
LAYERS, MAPS = [{"name": "layers"}], [{"name": "pooled"}, {"name": "attention"}]
INFER: Fields = {
    **{f"inputs{name}": GIVEN for name in ("", ".name", ".shape", ".datatype", ".data")},
    **{
        f"inputs.parameters{name}": GIVEN
        for name in ("", ".binary_data_size", ".shared_memory_region")
    },
    "id": nothing(id="a"),
    "parameters": nothing(parameters={}),
    "parameters.binary_data_output": form(parameters={"binary_data_output": True}),
    "parameters.layers": none(parameters={"layers": "0"}, outputs=LAYERS),
    "parameters.attention_layers": nothing(parameters={"attention_layers": "1"}, outputs=MAPS),
    "parameters.attention_heads": nothing(parameters={"attention_heads": "1"}, outputs=MAPS),
    "parameters.timeout": nothing(parameters={"timeout": 9_000_000}),
    "parameters.priority": nothing(parameters={"priority": 1}),
    "parameters.sequence_id": nothing(parameters={"sequence_id": 0}),
    "parameters.sequence_start": nothing(parameters={"sequence_start": False}),
    "parameters.sequence_end": nothing(parameters={"sequence_end": False}),
    "outputs": another(outputs=[{"name": "tokens"}]),
    "outputs.name": none(outputs=[{"name": "pooled"}, *LAYERS]),
    "outputs.parameters": nothing(outputs=[{"name": "pooled", "parameters": {}}]),
    "outputs.parameters.binary_data": form(
        outputs=[{"name": "pooled", "parameters": {"binary_data": True}}]
    ),
    **{
        f"outputs.parameters.{name}": nothing(outputs=[{"name": "pooled", "parameters": given}])
        for name, given in (
            ("classification", {"classification": 0}),
            ("shared_memory_region", {"shared_memory_region": None}),
        )
    },
}
QUERY = ("text", "pair", "token_ids", "token_type_ids", "spans", "patch", "embeddings")
QUERY += tuple(f"embeddings.{name}" for name in ("shape", "dtype", "data"))
QUERY += tuple(f"patch.{name}" for name in ("layer", "head", "from"))
HIGHLIGHT: Fields = {
    **dict.fromkeys(("query", "documents", "documents.text"), GIVEN),
    **{f"query.{name}": GIVEN for name in QUERY},
    **{f"query.{name}": none(query={"text": TEXT, "gates": [GATE]}) for name in GATES},
    **GATES,
    "unit": nothing(unit="word"),
    "method": nothing(method="alone"),
    "top": nothing(top=1),
    "prune": nothing(prune=0.5),
    "control": nothing(control=False),
    "model": another(model="dense:lora"),
    "prompt_name": another(prompt_name="query"),
    "prompt_name.query": nothing(prompt_name={"query": "query"}),
    "prompt_name.document": another(prompt_name={"document": "document"}),
    "task": another(task="lora"),
    "task.query": nothing(task={"query": "lora"}),
    "task.document": another(task={"document": "lora"}),
    "truncate": another(truncate="left"),
}
COMPARED: Fields = {
    **dict.fromkeys(("inputs", "inputs.source_sentence", "inputs.sentences"), GIVEN),
    "truncate": nothing(truncate=True),
    "truncation_direction": another(truncation_direction="Left"),
    "prompt_name": another(prompt_name="query"),
}
# by route, a plain request and what each field does; of some, that only scores are answered
OPENAI = ({"model": "m3", "input": LONG, "truncate": "right"}, EMBEDDINGS)
TEI, COHERES = {"inputs": LONG, "truncate": True}, {"input_type": "clustering", "model": "m3"}
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
COUPLE = {"source_sentence": LONG, "sentences": ["The sky is grey. " * 20]}
SCORES = None
ROUTES: dict[str, tuple[dict[str, Any], Fields] | None] = {
    "/v1/encode": ({"inputs": [LONG], "truncate": "right", "pooled": {"mode": "mean"}}, ENCODE),
    "/v1/highlight": (
        {"query": TEXT, "documents": [LONG], "truncate": "right"},
        {field: does and does._replace(model="dense") for field, does in HIGHLIGHT.items()},
    ),
    "/v1/embeddings": OPENAI,
    "/embeddings": OPENAI,
    "/": (TEI, EMBED),
    "/embed": (TEI, EMBED),
    "/embed_all": (TEI, EMBED_ALL),
    "/similarity": ({"inputs": COUPLE, "parameters": {"truncate": True}}, COMPARED),
    "/v2/embed": ({**COHERES, "texts": [LONG], "embedding_types": ["float"]}, COHERE),
    "/v2/models/{model}/infer": ({"inputs": [TENSOR]}, INFER),
    "/v2/models/{model}/versions/{version}/infer": ({"inputs": [TENSOR]}, INFER),
    "/v1/similarity": SCORES,
    "/v1/maxsim": SCORES,
    "/v1/classify": SCORES,
    "/rerank": SCORES,
    "/predict": SCORES,
    "/embed_sparse": SCORES,
    "/v1/rerank": SCORES,
    "/v2/rerank": SCORES,
}
STATED = [
    pytest.param(path, field, id=f"{path} {field}")
    for path, told in ROUTES.items()
    if told is not SCORES
    for field, does in told[1].items()
    if does is not GIVEN
]


def body_of(path: str) -> dict[str, Any]:
    """What the API document says of a route's JSON."""
    content: dict[str, Any] = document()["paths"][path]["post"]["requestBody"]["content"][JSON]
    return content


def fields(schema: dict[str, Any], within: str = "") -> Iterator[str]:
    """Every field of a body, with the names of those around it."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        schema = document()["components"]["schemas"][name]
    for kind in ("anyOf", "oneOf"):
        for each in schema.get(kind, ()):
            yield from fields(each, within)
    if isinstance(items := schema.get("items"), dict):
        yield from fields(items, within)
    for name, each in schema.get("properties", {}).items():
        yield f"{within}{name}"
        yield from fields(each, f"{within}{name}.")


def test_every_field_says_what_it_does_to_the_space() -> None:
    """Of every route that encodes; a new one must say it here before it is taken."""
    assert {*ROUTES} == {route.path for route in api.ROUTES if route.parse}
    for path, told in ROUTES.items():
        if told is not SCORES:
            assert {*told[1]} == {*fields(body_of(path)["schema"])}, path


@pytest.mark.parametrize("path", [path for path, told in ROUTES.items() if told is SCORES])
def test_an_answer_of_scores_names_no_space(
    path: str, served: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked."""
    parse = next(route.parse for route in api.ROUTES if route.path == path)
    sent = SimpleNamespace(headers={}, media_type=None, ignored={})
    gateway = served["m3"].replica.gateway
    # which this model may not have
    monkeypatch.setattr(Resolver, "tasks", lambda *_: ())
    monkeypatch.setattr(Resolver, "adapter", lambda *_: None)
    example = next(iter(body_of(path)["examples"].values()))["value"]
    call = parse(json.dumps(example).encode(), sent, DOES_ALL) if parse else None
    with pooled_by(served["m3"].replica, "mean"):
        assert call and not gateway.question(call.request).sides()[-1].vectors


def _adapters(folder: Path) -> tuple[str, ...]:
    return tuple(f"{path.name}={path}" for path in folder.glob("lora"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
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


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("path", "field"), STATED)
async def test_what_changes_a_vector_changes_its_space(
    served: dict[str, Served], path: str, field: str
) -> None:
    """Or the answer names none; what changes no bit keeps the space."""
    told = ROUTES[path]
    assert told is not SCORES
    plain, does = told[0], told[1][field]
    assert does is not GIVEN
    space, vectors = await ask(served[does.model], path, plain)
    changed, moved = await ask(served[does.model], path, plain | does.body)

    assert space is not None
    match does.kind:
        case "nothing":
            assert (changed, moved) == (space, vectors)
        case "another":
            assert changed not in (None, space) and (vectors is None or moved != vectors)
        case "form":
            assert changed == space
        case "none":
            assert changed is None
