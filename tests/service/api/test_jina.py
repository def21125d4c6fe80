"""The fields of Jina's clients on POST /v1/embeddings, held to OpenAI's and to the library."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import quantize_embeddings

from service.api import openai
from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.replica import Replica
from service.shapes.call import ModelFacts
from service.tables.refusals import Refused

NAME = "all-MiniLM-L6-v2"
TEXTS = ["All is well", "A dog ate the food because it was hungry"]
LONG = "well " * 300


async def embed(http: httpx.AsyncClient, **body: Any) -> list[Any]:
    """The vectors of an answer that must come, each as it is written."""
    answer = await http.post("/v1/embeddings", json={"model": NAME, "input": TEXTS, **body})
    assert answer.status_code == 200, answer.text
    return [row["embedding"] for row in answer.json()["data"]]


@pytest.mark.parametrize("name", ["embedding_type", "encoding_type"])
async def test_each_kind_is_the_librarys(client: httpx.AsyncClient, name: str) -> None:
    """By the name of today and by the former one; null is the default."""
    for size in (384, 13):
        floats = np.array(await embed(client, dimensions=size), dtype=np.float32)
        how = {"dimensions": size}
        assert await embed(client, **how, **{name: "float"}) == await embed(
            client, **how, **{name: None}
        )
        np.testing.assert_array_equal(
            [
                np.frombuffer(base64.b64decode(one), "<f4")
                for one in await embed(client, **how, **{name: "base64"})
            ],
            floats,
        )
        for precision in ("binary", "ubinary"):
            told = await embed(client, **how, **{name: precision})
            assert told == quantize_embeddings(floats, precision=precision).tolist()


async def test_a_text_may_be_an_object(client: httpx.AsyncClient) -> None:
    """One, or some in a list."""
    plain = await embed(client)

    assert await embed(client, input={"text": TEXTS[0]}) == plain[:1]
    assert await embed(client, input=[TEXTS[0], {"text": TEXTS[1]}]) == plain


async def test_truncate_is_a_switch_too(client: httpx.AsyncClient) -> None:
    """True cuts on the right; false refuses, whatever the service is set to."""
    cut = await embed(client, input=["dog " + LONG], truncate=True)
    right = await embed(client, input=["dog " + LONG], truncate="right")
    body = {"model": NAME, "input": [LONG], "truncate": False}
    refused = (await client.post("/v1/embeddings", json=body)).json()

    assert cut == right != await embed(client, input=["dog " + LONG], truncate="left")
    assert refused["error"]["code"] == "context_length_exceeded"


async def test_vectors_that_are_not_normalised_are_the_models(client: httpx.AsyncClient) -> None:
    """As the library makes them without its last module; their bits are those of the others."""
    whole = SentenceTransformer(str(locate_model(BUNDLED_MODEL).folder), device="cpu")
    peer = SentenceTransformer(modules=[*whole][:-1], device="cpu")
    how: dict[str, Any] = {"normalized": False, "dimensions": 32}
    told = await embed(client, **how)
    bits = await embed(client, **how, embedding_type="ubinary")

    expected = peer.encode(TEXTS, truncate_dim=32)
    np.testing.assert_allclose(told, expected, rtol=0, atol=1e-5)
    assert bits == quantize_embeddings(expected, precision="ubinary").tolist()
    assert bits == await embed(client, dimensions=32, embedding_type="ubinary")


@pytest.mark.parametrize(
    ("task", "prompt"), [("retrieval.query", "query"), ("retrieval.passage", "document")]
)
async def test_a_task_chooses_the_prompt(
    prompted: Replica,
    prompted_peer: SentenceTransformer,
    prompted_http: httpx.AsyncClient,
    task: str,
    prompt: str,
) -> None:
    """As the library reads texts with that prompt."""
    told = await embed(prompted_http, model=prompted.name, task=task)

    expected = prompted_peer.encode(TEXTS, prompt_name=prompt, normalize_embeddings=True)
    np.testing.assert_allclose(told, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("task", "prompts", "chosen"),
    [
        ("retrieval.query", ["query", "retrieval.query"], "retrieval.query"),
        ("retrieval.passage", ["corpus", "passage", "query"], "passage"),
        ("retrieval.passage", ["corpus"], "corpus"),
        ("text-matching", ["text-matching"], "text-matching"),
        ("clustering", ["separation"], "separation"),
        ("separation", ["clustering", "separation"], "separation"),
        ("sts", ["Clustering", "STS", "query"], "STS"),
        ("STS", ["sts", "STS"], "STS"),
        ("Retrieval.Query", ["Query"], "Query"),
        ("clustering", ["separation", "Clustering"], "Clustering"),
    ],
)
async def test_a_prompt_of_the_tasks_own_name_comes_first(
    task: str, prompts: list[str], chosen: str | None
) -> None:
    """As Jina's checkpoints name theirs."""
    served = ModelFacts(["a-model", "a-model:another"], ["encode"], 1, 1, 1, prompts)

    assert openai.choose_purpose(task, served) == (None, chosen)


async def test_an_adapter_of_the_tasks_name_goes_before_every_prompt() -> None:
    """Its instruction is the adapter's own."""
    served = ModelFacts(["a-model", "a-model:separation"], ["encode"], 1, 1, 1, ["separation"])

    assert openai.choose_purpose("separation", served) == ("separation", None)
    assert openai.choose_purpose("Separation", served) == ("separation", None)


async def test_an_adapter_of_a_tasks_kind_goes_with_the_prompt_of_its_side() -> None:
    """As jina-embeddings-v5 has them; without such a prompt the side would be lost."""
    names = ["a-model", "a-model:retrieval"]
    served = ModelFacts(names, ["encode"], 1, 1, 1, ["query", "document"])

    assert openai.choose_purpose("retrieval.query", served) == ("retrieval", "query")
    assert openai.choose_purpose("retrieval.passage", served) == ("retrieval", "document")
    assert openai.choose_purpose("Retrieval.passage", served) == ("retrieval", "document")
    assert openai.choose_purpose("retrieval", served) == ("retrieval", None)
    with pytest.raises(Refused) as refused:
        openai.choose_purpose("retrieval.query", ModelFacts(names, ["encode"], 1, 1, 1, []))
    assert 'adapters "retrieval"' in str(refused.value.faults)


async def test_a_task_of_no_adapter_and_no_prompt_is_refused() -> None:
    """It says what there is, also in the sentence, which is all that OpenAI's clients show."""
    with pytest.raises(Refused) as refused:
        openai.choose_purpose(
            "retrieval.passage",
            ModelFacts(["a-model"], ["encode"], 1, 1, 1, ["query", "classification"]),
        )

    assert refused.value.facts["prompts"] == ["classification", "query"]
    (fault,) = refused.value.faults
    known = 'this model has the prompts "classification" and "query"'
    assert fault.detail == f"{known}: name one of them, or leave it out"


async def test_a_name_that_may_mean_two_prompts_is_refused() -> None:
    """Where it is neither as it is written."""
    served = ModelFacts(["a-model"], ["encode"], 1, 1, 1, ["STS", "sts"])

    with pytest.raises(Refused, match="prompt_not_found") as refused:
        openai.choose_purpose("Sts", served)

    (fault,) = refused.value.faults
    assert fault.detail == 'this model has "STS" and "sts", and the name may mean any'


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "late chunking": ({"late_chunking": True}, "out_of_range", "late_chunking: each input is read"),
    "two names": (
        {"embedding_type": "float", "encoding_format": "binary"},
        *("out_of_range", "`encoding_format` is given twice"),
    ),
    "some kinds": (
        {"embedding_type": ["float", "binary"]},
        *("out_of_range", "encoding_format: expected"),
    ),
    "steps of any length": (
        {"encoding_format": "int8", "normalized": False},
        *("out_of_range", "normalized: "),
    ),
    "a task of other models": ({"task": "nl2code.query"}, "prompt_not_found", "task: this"),
    "a task without a prompt": ({"task": "retrieval.query"}, "prompt_not_found", "task: this"),
    "many vectors": ({"return_multivector": True}, "out_of_range", "return_multivector: "),
    "a picture": ({"input": [{"image": "a"}]}, "missing_field", "input[0].text: this"),
    "an empty object": ({"input": ["a", {"text": ""}]}, "sequence_empty", "input[1]"),
    "a number as truncate": ({"truncate": 1}, "out_of_range", "truncate: expected"),
}


@pytest.mark.parametrize(("body", "code", "said"), BAD.values(), ids=BAD)
async def test_a_refusal_is_said_where_jinas_clients_look(
    client: httpx.AsyncClient, body: dict[str, Any], code: str, said: str
) -> None:
    """In `detail`, which they raise, and in OpenAI's error, both in one sentence."""
    asked = {"model": NAME, "input": TEXTS, **body}
    answer = await client.post("/v1/embeddings", json=asked)

    told = answer.json()
    assert (answer.status_code, told["error"]["code"]) == (400, code), told
    assert told["detail"] == told["error"]["message"] and said in told["detail"], told
