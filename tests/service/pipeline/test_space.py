"""The name of a space: what changes it, what does not, and what a client may expect of it."""

import asyncio
import functools
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from transformers import AutoTokenizer, BertConfig, BertModel

from model import kernels
from model.loading import checkpoint
from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.find.resolver import Resolver
from service.pipeline.reader import Reader
from service.pipeline.replica import Replica
from service.pipeline.space import SPACE_NAME, Spaces
from service.pipeline.worker import Worker, Workers
from service.questions.encode import EncodeRequest
from service.questions.encode.question import Encode
from service.shapes.ask import Custom
from service.shapes.outputs import Pooled
from service.shapes.side import Side
from service.tables.settings import Settings

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
WIDTH = 32
ASKED = EncodeRequest.of(["All is well"])
GATE, NAMED = {"layer": 0, "head": 1, "scale": 0.0}, "all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What sentence-transformers saves of a small model with a Dense layer and prompts."""
    base = tmp_path_factory.mktemp("bert")
    tokenizer = AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder)
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 1, "intermediate_size": 37}
    config = BertConfig(vocab_size=len(tokenizer), num_attention_heads=2, **sizes)
    torch.manual_seed(1)
    BertModel(config).save_pretrained(base)
    tokenizer.save_pretrained(base)
    parts = [Transformer(str(base)), Pooling(WIDTH), Dense(WIDTH, WIDTH), Normalize()]
    made = SentenceTransformer(modules=parts, prompts={"query": "query: "}, device="cpu")
    out = tmp_path_factory.mktemp("saved") / "model"
    made.save(str(out))
    return out


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """One of it to change."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@functools.cache
def loaded(folder: Path) -> checkpoint.Model:
    """The model of a folder that changes no more."""
    ways = kernels.choose_kernels(CPU, torch.float32)
    return checkpoint.load_checkpoint(folder, CPU, torch.float32, ways)


def read(
    folder: Path, request: EncodeRequest, dtype: str = "float32", max_tokens: int | None = None
) -> tuple[Spaces, Side]:
    """The spaces of a folder's model, and what a request reads."""
    model = loaded(folder)
    longest = max_tokens or model.max_tokens
    worker = cast(Worker, None)  # nothing is read
    reader = Reader(model.tokenizer, model.config, longest, 100, 100, model.prompts, {}, worker)
    resolver = Resolver("name", model, Settings())
    (side,) = Encode(request, Custom(), resolver, Workers(worker, worker)).sides
    return Spaces(resolver, reader, dtype, 1e-4), side


def parts_of(folder: Path, request: EncodeRequest = ASKED, **more: Any) -> Any:
    """What decides the space of a request."""
    spaces, side = read(folder, request, **more)
    return spaces.parts(side, edited=False)


def name(folder: Path, request: EncodeRequest = ASKED, **more: Any) -> str:
    """The name of a request's space."""
    spaces, side = read(folder, request, **more)
    found = spaces.of(side, edited=False)
    assert found is not None and SPACE_NAME.fullmatch(found)
    return found


def rewrite(path: Path, **values: Any) -> None:
    """Change some keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def other_weights(folder: Path) -> None:
    """Move one number."""
    path = next(folder.rglob("model.safetensors"))
    tensors = load_file(path)
    tensors["encoder.layer.0.output.dense.bias"][0] += 1
    save_file(tensors, path, {"format": "pt"})


def other_dense(folder: Path) -> None:
    """Move one number of the Dense layer."""
    path = folder / "2_Dense" / "model.safetensors"
    tensors = load_file(path)
    tensors["linear.bias"][0] += 1
    save_file(tensors, path)


def other_tokenizer(folder: Path) -> None:
    """Keep accents, where texts lost them."""
    path = next(folder.rglob("tokenizer.json"))
    steps = json.loads(path.read_text())["normalizer"]
    rewrite(path, normalizer=steps | {"strip_accents": False})
    rewrite(path.with_name("tokenizer_config.json"), strip_accents=False)


def lower_cased(folder: Path) -> None:
    """Lower-case texts before they are read."""
    path = next(folder.rglob("sentence_bert_config.json"))
    rewrite(path, do_lower_case=True)


def other_pooling(folder: Path) -> None:
    """Take the first token."""
    path = folder / "1_Pooling" / "config.json"
    sizes = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    path.write_text(json.dumps(sizes | {"pooling_mode_mean_tokens": False}))


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


# of a folder, of the service, and of the request
CHANGES: dict[str, tuple[Callable[[Path], None], dict[str, Any], EncodeRequest]] = {
    "weights": (other_weights, {}, ASKED),
    "pooling": (other_pooling, {}, ASKED),
    "prompt": (nothing, {}, EncodeRequest.of(ASKED.inputs, prompt_name="query")),
    "max_tokens": (nothing, {"max_tokens": 128}, ASKED),
    "lower_case": (lower_cased, {}, ASKED),
    "tokenizer": (other_tokenizer, {}, ASKED),
    "dense": (other_dense, {}, ASKED),
    "dtype": (nothing, {"dtype": "bfloat16"}, ASKED),
    "dimensions": (nothing, {}, EncodeRequest.of(ASKED.inputs, pooled=Pooled(dimensions=8))),
    "truncate": (nothing, {}, EncodeRequest.of(ASKED.inputs, truncate="left")),
}


@pytest.fixture(scope="module")
def unchanged(saved: Path) -> tuple[Any, str]:
    """What decides the space of that model, and its name."""
    return parts_of(saved), name(saved)


@pytest.mark.parametrize("part", CHANGES)
def test_each_change_makes_another_space(
    part: str, unchanged: Any, saved: Path, tmp_path: Path
) -> None:
    """And that part alone is another one."""
    change, more, request = CHANGES[part]
    folder = saved
    if change is not nothing:
        folder = Path(shutil.copytree(saved, tmp_path / "changed"))
        change(folder)

    before, own = unchanged
    spaces, side = read(folder, request, **more)
    after = spaces.parts(side, edited=False)

    assert spaces.of(side, edited=False) != own
    assert before is not None and after is not None
    assert {each for each, _ in before.items() ^ after.items()} == {part}


def test_what_asks_for_the_same_is_one_space(saved: Path, copy: Path) -> None:
    """A copy elsewhere, the model's own pooling by name, and all of its dimensions."""
    pooled = Pooled(mode="model", normalize=True, dimensions=WIDTH)
    same = EncodeRequest.of(["Other words"], pooled=pooled)

    assert name(copy) == name(saved, same) == name(saved)


def test_another_reduction_leaves_the_dense_layer_out(saved: Path) -> None:
    """So its weights are no part of that space."""
    parts = parts_of(saved, EncodeRequest.of(ASKED.inputs, pooled=Pooled(mode="cls")))

    assert parts is not None
    assert (parts["pooling"], parts["dense"]) == ("cls", "")


# A replica in a process of its own: its space and numerics, and one vector
STARTED = """
import asyncio, json
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, connected

async def main():
    replica = await Replica.start(Settings(device="cpu", threads=1), "replica-2")
    async with connected(application(replica)) as client:
        told = (await client.post("/v1/encode", json={"inputs": ["All is well"]})).json()
    await replica.close()
    facts = {name: told[name] for name in ("space", "numerics")}
    print(json.dumps(facts | {"pooled": told["data"][0]["pooled"]}))

asyncio.run(main())
"""
PROCESSORS: dict[str, dict[str, str]] = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "as it is": {},
    "SSE4.1": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}


@pytest.mark.prove
@pytest.mark.parametrize("processor", PROCESSORS)
async def test_a_space_outlasts_a_restart_on_another_processor(
    client: httpx.AsyncClient, processor: str
) -> None:
    """In another replica; numerics tell the processors apart, and vectors stay in the bound."""
    ours = (await client.post("/v1/encode", json={"inputs": ["All is well"]})).json()
    bound = (await client.get("/info")).json()["space_bound"]

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTED),
        env={**os.environ, **PROCESSORS[processor]},
        cwd=ROOT,
        stdout=PIPE,
        stderr=PIPE,
    )
    said, errors = await process.communicate()

    assert process.returncode == 0, errors.decode()
    theirs = json.loads(said)
    assert theirs["space"] == ours["space"]
    vectors = [np.array(each) for each in (ours["data"][0]["pooled"], theirs["pooled"])]
    far = np.linalg.norm(vectors[0] - vectors[1]) / np.linalg.norm(vectors[0])
    own = torch.backends.cpu.get_cpu_capability()
    same = processor in ("as it is", own)
    assert (theirs["numerics"] == ours["numerics"]) is same
    assert far == 0.0 if same else far <= bound


async def test_answers_with_vectors_name_their_space(client: httpx.AsyncClient) -> None:
    """The native one in its body too; GET /info has that of a request that chooses nothing."""
    info = (await client.get("/info")).json()
    native = await client.post("/v1/encode", json={"inputs": ["All is well"]})
    openai = await client.post(
        "/v1/embeddings", json={"input": "All is well", "model": info["model"]}
    )
    short = await client.post(
        "/v1/encode", json={"inputs": ["All is well"], "pooled": {"dimensions": 64}}
    )
    scores = await client.post("/v1/similarity", json={"left": "a", "right": ["b"]})

    assert native.headers["x-headlight-space"] == native.json()["space"] == info["space"]
    assert openai.headers["x-headlight-space"] == info["space"]
    assert short.headers["x-headlight-space"] not in ("", info["space"])
    assert "x-headlight-space" not in scores.headers and "space" not in scores.json()


@pytest.mark.parametrize(
    ("path", "body", "other", "why"),
    [
        ("/v1/encode", {"inputs": ["a"]}, {"pooled": {"dimensions": 64}}, "is dimensions"),
        ("/v1/encode", {"inputs": ["a"]}, {"truncate": "left"}, "is truncate"),
        ("/v1/encode", {"inputs": ["a"]}, {"gates": [GATE]}, "of no space"),
        ("/v1/encode", {"inputs": ["a"]}, {"layers": [0]}, "of no space"),
        ("/v1/similarity", {"left": "a", "right": ["b"]}, {"gates": [GATE]}, "of no space"),
        ("/v1/embeddings", {"input": "a", "model": NAMED}, {"dimensions": 64}, "is dimensions"),
        ("/embed", {"inputs": "a"}, {"dimensions": 64}, "is dimensions"),
    ],
)
async def test_a_space_that_is_not_the_expected_one_is_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], other: dict[str, Any], why: str
) -> None:
    """In every API with 409, saying which part differs; the expected one is answered."""
    own = (await client.get("/info")).json()["space"]

    refused = await client.post(path, json=body | other, headers={"X-Headlight-Expect": own})
    answered = await client.post(path, json=body, headers={"X-Headlight-Expect": own})

    assert refused.status_code == 409 and why in refused.text
    assert answered.status_code == 200


async def test_a_refused_space_names_both_and_what_changed(client: httpx.AsyncClient) -> None:
    """As far as one part explains it; of another model's it says that it does not know."""
    expected = "s1-" + "0" * 16
    asked = {"X-Headlight-Expect": expected}

    told = (await client.post("/v1/encode", json={"inputs": ["a"]}, headers=asked)).json()

    assert (told["code"], told["expected"], told["changed"]) == ("space_changed", expected, [])
    assert SPACE_NAME.fullmatch(told["actual"]) and "not known" in told["detail"]


@pytest.mark.parametrize("wrong", ["", "s1-0", "s2-" + "0" * 16, "s1-" + "F" * 16, "x" * 999])
async def test_what_is_no_space_is_not_expected(client: httpx.AsyncClient, wrong: str) -> None:
    """Rather than never found."""
    asked = {"X-Headlight-Expect": wrong}
    answer = await client.post("/v1/encode", json={"inputs": ["a"]}, headers=asked)

    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"loc": ["x-headlight-expect"], "code": "out_of_range"}]


async def test_a_space_is_refused_before_any_work(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No text is read for it."""
    monkeypatch.setattr(Reader, "read", None)
    asked = {"X-Headlight-Expect": "s1-" + "0" * 16}

    answer = await client.post("/v1/encode", json={"inputs": ["a b c"] * 500}, headers=asked)

    assert answer.status_code == 409
