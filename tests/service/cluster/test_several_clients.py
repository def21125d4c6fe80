"""Other people's clients, unmodified, that ask one of several models at one address."""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Set
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from openai import NotFoundError, OpenAI
from tritonclient.http import InferenceServerClient, InferInput

from service.cluster.choose_model import MODEL_HEADER
from tests.frameworks.recording import STORED
from tests.several_models import EMBEDDER, FIRST, LARGE, RERANKER, Address, texts

WIDTH = 15  # of a vector of EMBEDDER's alone
KIB = 1 << 10
NAMES_OF_SIZES = {KIB: "1 KiB", 100 * KIB: "100 KiB", LARGE: "1.5 MiB"}
PATIENCE_SECONDS = 60


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hugging Face's client out, as far as this machine; the tests otherwise forbid it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def by_openai(address: Address, size: int) -> Any:
    """By the body's `model`, which this client writes behind its input."""
    with OpenAI(base_url=f"{address.url}/v1", api_key="none", max_retries=0) as client:
        raw = client.embeddings.with_raw_response.create(model=EMBEDDER, input=texts(size))
    assert raw.headers["x-headlight-weights"] == address.weights()[EMBEDDER]
    answer = raw.parse()
    assert answer.model == EMBEDDER
    return [item.embedding for item in answer.data]


def by_huggingface_prefix(address: Address, size: int) -> Any:
    """By the prefix: this client's bodies name no model."""
    client = InferenceClient(model=f"{address.url}/{EMBEDDER}", timeout=PATIENCE_SECONDS)
    return client.feature_extraction(texts(size))


def by_huggingface_header(address: Address, size: int) -> Any:
    """By a header."""
    client = InferenceClient(
        model=address.url, headers={MODEL_HEADER: EMBEDDER}, timeout=PATIENCE_SECONDS
    )
    return client.feature_extraction(texts(size))


def by_llama_index(address: Address, size: int) -> Any:
    """By the prefix."""
    # it takes seconds to import, and one process of the tests runs this
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    client = TextEmbeddingsInference(
        model_name=EMBEDDER, base_url=f"{address.url}/{EMBEDDER}", timeout=PATIENCE_SECONDS
    )
    return client.get_text_embedding_batch(texts(size))


def by_tritonclient(address: Address, size: int) -> Any:
    """By the path of the Open Inference Protocol."""
    sent = np.array([text.encode() for text in texts(size)], dtype=object)
    given = InferInput("text", list(sent.shape), "BYTES")
    given.set_data_from_numpy(sent)
    client = InferenceServerClient(address.url.removeprefix("http://"))
    try:
        answer = client.infer(EMBEDDER, [given])
    finally:
        client.close()
    assert answer.get_response()["model_name"] == EMBEDDER
    return answer.as_numpy("pooled")


def pairs(asked: Iterable[Any], also: Set[tuple[Any, int]], fast: int) -> list[Any]:
    """Each of `asked` with each size; `prove` has all but those of one size, and `also`."""
    return [
        pytest.param(
            one,
            size,
            id=f"{getattr(one, '__name__', one)}-{name}",
            marks=() if size == fast or (one, size) in also else pytest.mark.prove,
        )
        for one in asked
        for size, name in NAMES_OF_SIZES.items()
    ]


CLIENTS = (by_openai, by_huggingface_prefix, by_huggingface_header, by_llama_index, by_tritonclient)


@pytest.mark.parametrize(("ask", "size"), pairs(CLIENTS, {(by_openai, LARGE)}, 100 * KIB))
async def test_a_client_is_answered_by_the_second_model(
    address: Address, ask: Callable[[Address, int], Any], size: int
) -> None:
    """Whatever its body's size, and wherever it says what it asks."""
    await asyncio.to_thread(check_client, address, ask, size)


def check_client(address: Address, ask: Callable[[Address, int], Any], size: int) -> None:
    """Hold what a client is answered against the second model's own answer."""
    count = len(texts(size))

    vectors = np.array(ask(address, size), dtype=np.float32)

    assert vectors.shape == (count, WIDTH)
    own = {"inputs": texts(size)[:1]}
    told = httpx.post(f"{address.url}/{EMBEDDER}/v1/encode", json=own, timeout=PATIENCE_SECONDS)
    expected = np.array(told.json()["data"][0]["pooled"], dtype=np.float32)
    np.testing.assert_array_equal(vectors[0], expected)


@pytest.mark.parametrize("size", [0, LARGE], ids=["", "1.5 MiB"])
async def test_openais_client_is_told_of_an_unknown_model(address: Address, size: int) -> None:
    """By its own error, with the names that there are."""

    def ask() -> None:
        with OpenAI(base_url=f"{address.url}/v1", api_key="none", max_retries=0) as client:
            client.embeddings.create(model="nope", input=texts(size))

    with pytest.raises(NotFoundError, match=f"{FIRST}.*{EMBEDDER}.*{RERANKER}"):
        await asyncio.to_thread(ask)


RECORDED: dict[str, list[dict[str, Any]]] = json.loads(STORED.read_text())
NAMING = {  # by title: whose requests name a model, and no size that only one has
    title: requests
    for title, requests in RECORDED.items()
    if '"model"' in requests[0]["body"] and '"dimensions"' not in requests[0]["body"]
}


@pytest.mark.parametrize(("title", "size"), pairs(NAMING, set(), KIB))
async def test_a_recorded_client_is_answered_by_the_model_that_it_names(
    address: Address, title: str, size: int
) -> None:
    """Cohere, LangChain and others, their embeddings by the second model, rankings by the third."""
    await asyncio.to_thread(check_recorded, address, title, size)


OWN_TEXT = re.compile(r'\{"text": "All is well"\}|"All is well"')


def put_texts(several: list[str], own: re.Match[str]) -> str:
    """Texts as a client writes one."""
    return ",".join(own[0].replace("All is well", text) for text in several)


def check_recorded(address: Address, title: str, size: int) -> None:
    """Hold the answers to what a client sends, one text of it as long as a body is to be."""
    weights = address.weights()
    for request in NAMING[title]:
        content = request["body"].replace(f'"{FIRST}"', f'"{EMBEDDER}"')
        content = OWN_TEXT.sub(partial(put_texts, texts(size)), content)
        name = EMBEDDER if EMBEDDER in content else RERANKER
        kept = {k: v for k, v in request["headers"].items() if k.lower() != "content-length"}
        answer = httpx.post(
            address.url + request["path"], content=content, headers=kept, timeout=PATIENCE_SECONDS
        )
        assert answer.status_code == request["status"], answer.text
        assert answer.headers["x-headlight-weights"] == weights[name]
