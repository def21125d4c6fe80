"""Clients of text-embeddings-inference, unmodified, and the wire beneath them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from service.pipeline.find.resolver import Resolver
from service.pipeline.replica import Replica
from tests.conftest import posted
from tests.replica_internals import bound
from tests.service.api.exact_arrays import Array, pooled
from tests.space_fields import GIVEN, LONG_TEXT, Fields, Spaces, changes_space, keeps_bits

EMBED_ALL: Fields = {
    "inputs": GIVEN,
    "truncate": keeps_bits(truncate=True),
    "truncation_direction": changes_space(truncation_direction="Left"),
    "prompt_name": changes_space(prompt_name="query"),
}
EMBED = {
    **EMBED_ALL,
    "encoding_format": keeps_bits(encoding_format="float"),
    "normalize": changes_space(normalize=False),
    "dimensions": changes_space(dimensions=8),
}
COMPARED: Fields = {
    **dict.fromkeys(("inputs", "inputs.source_sentence", "inputs.sentences"), GIVEN),
    "truncate": keeps_bits(truncate=True),
    "truncation_direction": changes_space(truncation_direction="Left"),
    "prompt_name": changes_space(prompt_name="query"),
}
PLAIN_BODY = {"inputs": LONG_TEXT, "truncate": True}
COUPLE = {"source_sentence": LONG_TEXT, "sentences": ["The sky is grey. " * 20]}
SPACE: Spaces = {
    "/": (PLAIN_BODY, EMBED),
    "/embed": (PLAIN_BODY, EMBED),
    "/embed_all": (PLAIN_BODY, EMBED_ALL),
    "/similarity": ({"inputs": COUPLE, "parameters": {"truncate": True}}, COMPARED),
}
# all-MiniLM-L6-v2's mean of the token vectors of LEARNING, not normalised, as TEI publishes it:
# backends/candle/tests/snapshots/test_bert__bert_single.snap
PUBLISHED = np.loadtxt(Path(__file__).with_name("tei_mean.txt")).reshape(-1)
LEARNING = "What is Deep Learning?"
TEXTS = ["All is well", "A dog ate the food because it was hungry"]
IDS = [[101, 2035, 2003, 2092, 102], [101, 3899, 102]]
LONG = "one two three four five " * 100 + "the end"


@pytest.fixture(autouse=True)
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hugging Face's client out, as far as this machine; the tests otherwise forbid it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def cosine(one: Array, other: Array) -> float:
    """The cosine of two vectors."""
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


async def post(http: httpx.AsyncClient, path: str, **asked: Any) -> Any:
    """A request that must succeed."""
    return await posted(http, path, asked)


async def asked(ask: Callable[[], Any]) -> Array:
    """What a synchronous client answers, as float32."""
    return np.array(await asyncio.to_thread(ask), dtype=np.float32)


@pytest.mark.client("huggingface-hub", "feature_extraction")
async def test_feature_extraction_is_answered_exactly(
    address: str, http: httpx.AsyncClient
) -> None:
    """POST /: texts in, a float32 array out, bit for bit /v1/encode's."""
    client = InferenceClient(model=address)

    several = await asked(lambda: client.feature_extraction(TEXTS))
    one = await asked(lambda: client.feature_extraction(TEXTS[0]))

    np.testing.assert_array_equal(several, await pooled(http, TEXTS))
    np.testing.assert_array_equal(one, several[:1])


@pytest.mark.client("huggingface-hub", "asynchronous client")
async def test_the_asynchronous_client_is_answered(address: str, http: httpx.AsyncClient) -> None:
    """By base_url, as OpenAI's client is told."""
    async with AsyncInferenceClient(base_url=address) as client:
        told = await client.feature_extraction(TEXTS)

    np.testing.assert_array_equal(told, await pooled(http, TEXTS))


@pytest.mark.client("huggingface-hub", "normalize, dimensions")
async def test_normalize_and_dimensions_are_those_of_encode(
    address: str, http: httpx.AsyncClient
) -> None:
    """Not normalised, the vector is as the mean left it."""
    client = InferenceClient(model=address)

    plain = await asked(lambda: client.feature_extraction(TEXTS, normalize=False))
    cut = await asked(lambda: client.feature_extraction(TEXTS, normalize=True, dimensions=7))

    how = {"normalize": False}
    np.testing.assert_array_equal(plain, await pooled(http, TEXTS, pooled=how))
    np.testing.assert_array_equal(cut, await pooled(http, TEXTS, pooled={"dimensions": 7}))
    assert np.linalg.norm(plain, axis=1).min() > 1.1


@pytest.mark.client("huggingface-hub", "truncate, truncation_direction")
async def test_truncation_is_teis(address: str, http: httpx.AsyncClient) -> None:
    """On the right unless told otherwise; refused only on demand, and then it says how long."""
    client = InferenceClient(model=address)

    right = await asked(lambda: client.feature_extraction(LONG))
    left = await asked(
        lambda: client.feature_extraction(LONG, truncate=True, truncation_direction="left")
    )
    with pytest.raises(HfHubHTTPError) as error:
        await asked(lambda: client.feature_extraction(LONG, truncate=False))

    np.testing.assert_array_equal(right, await pooled(http, [LONG], truncate="right"))
    np.testing.assert_array_equal(left, await pooled(http, [LONG], truncate="left"))
    told = error.value.response.json()
    assert told["error_type"] == "Validation" and "at most 256" in told["error"]


@pytest.mark.client("huggingface-hub", "prompt_name")
async def test_a_prompt_goes_before_the_text(
    prompted_url: str, prompted_http: httpx.AsyncClient
) -> None:
    """The text with it in front, by hand, is the same."""
    client = InferenceClient(model=prompted_url)

    told = await asked(lambda: client.feature_extraction(TEXTS, prompt_name="passage"))

    by_hand = [f"pre{text}" for text in TEXTS]
    expected = await pooled(prompted_http, by_hand, prompt_name="document")
    np.testing.assert_array_equal(told, expected)


@pytest.fixture
def llama_index(address: str) -> Any:
    """The client of LlamaIndex, imported here: it takes two seconds of each process."""
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    return TextEmbeddingsInference(model_name="all-MiniLM-L6-v2", base_url=address)


@pytest.mark.client("llama-index-embeddings-text-embeddings-inference", "TextEmbeddingsInference")
async def test_llama_index_is_answered_exactly(llama_index: Any, http: httpx.AsyncClient) -> None:
    """Its queries and texts, several at once, synchronous and not."""
    query = await asked(lambda: llama_index.get_query_embedding(TEXTS[0]))
    several = await asked(lambda: llama_index.get_text_embedding_batch(TEXTS))
    later = np.array(await llama_index.aget_text_embedding_batch(TEXTS), dtype=np.float32)

    expected = await pooled(http, TEXTS)
    np.testing.assert_array_equal(query, expected[0])
    np.testing.assert_array_equal(several, expected)
    np.testing.assert_array_equal(later, expected)


@pytest.mark.client("llama-index-embeddings-text-embeddings-inference", "truncate_text")
async def test_llama_index_truncates(llama_index: Any, http: httpx.AsyncClient) -> None:
    """By default, on the right."""
    told = await asked(lambda: llama_index.get_text_embedding(LONG))

    np.testing.assert_array_equal(told, (await pooled(http, [LONG], truncate="right"))[0])


async def test_teis_published_numbers_hold(http: httpx.AsyncClient) -> None:
    """The vector of /embed, and the mean of those of /embed_all; normalised or not."""
    plain = np.array(await post(http, "/embed", inputs=LEARNING, normalize=False))[0]
    unit = np.array(await post(http, "/embed", inputs=LEARNING))[0]
    tokens = np.array(await post(http, "/embed_all", inputs=LEARNING))[0]

    assert tokens.shape == (7, 384)
    assert min(cosine(one, PUBLISHED) for one in (plain, unit, tokens.mean(0))) > 0.99999
    np.testing.assert_allclose(plain, PUBLISHED, rtol=0, atol=2e-3)


async def test_embed_all_gives_the_token_vectors_of_encode(http: httpx.AsyncClient) -> None:
    """Special tokens included, each sequence as long as it is."""
    told = await post(http, "/embed_all", inputs=TEXTS)
    native = await post(http, "/v1/encode", inputs=TEXTS, tokens=True)

    assert told == [item["token_vectors"] for item in native["data"]]
    assert [len(vectors) for vectors in told] == [5, 11]


@pytest.mark.parametrize("given", [IDS, IDS[0]], ids=["lists", "one list"])
async def test_token_ids_are_encoded_as_given(http: httpx.AsyncClient, given: Any) -> None:
    """No special token is added to them."""
    told = np.array(await post(http, "/embed", inputs=given), dtype=np.float32)

    lists = given if isinstance(given[0], list) else [given]
    expected = await pooled(http, [{"token_ids": ids} for ids in lists])
    np.testing.assert_array_equal(told, expected)


async def test_similarity_is_the_cosine(http: httpx.AsyncClient) -> None:
    """Of the first sentence with each other."""
    others = [LEARNING, TEXTS[0]]
    given = {"source_sentence": TEXTS[0], "sentences": others}

    told = await post(http, "/similarity", inputs=given, parameters={"truncate": True})

    vectors = await pooled(http, [TEXTS[0], *others])
    assert told == pytest.approx([cosine(vectors[0], vectors[1]), 1.0], abs=1e-6)


async def test_tokens_are_shown_as_tei_shows_them(http: httpx.AsyncClient) -> None:
    """A special token stands nowhere; any other is the characters it came from."""
    told = await post(http, "/tokenize", inputs=["Unbelievable!", "a"])
    plain = await post(http, "/tokenize", inputs="a", add_special_tokens=False)

    first = [(token["text"], token["start"], token["stop"]) for token in told[0]]
    assert first[0] == ("[CLS]", None, None) and first[-1] == ("[SEP]", None, None)
    assert first[1:-1] == [("Unbelievable", 0, 12), ("!", 12, 13)]
    assert told[0][0] == {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert plain == [told[1][1:-1]]


async def test_a_prompt_is_tokenized_with_its_text(prompted_http: httpx.AsyncClient) -> None:
    """As TEI has it, places count in both together."""
    told = await post(prompted_http, "/tokenize", inputs="fix it", prompt_name="passage")

    words = [token["text"] for token in told[0] if not token["special"]]
    assert "".join(words) == "prefixit" and told[0][-2]["stop"] == len("prefix it")


async def test_ids_become_text_again(http: httpx.AsyncClient) -> None:
    """With special tokens only on demand."""
    assert await post(http, "/decode", ids=IDS[0]) == ["all is well"]
    told = await post(http, "/decode", ids=IDS, skip_special_tokens=False)
    assert told == ["[CLS] all is well [SEP]", "[CLS] dog [SEP]"]


async def test_health_has_no_body(
    http: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And TEI's word for the opposite."""
    well = await http.get("/health")
    monkeypatch.setattr(replica.health.batches, "fault", "a canary came out wrong")
    ill = await http.get("/health")

    assert (well.status_code, well.content) == (200, b"")
    assert (ill.status_code, ill.json()["error_type"]) == (503, "Unhealthy")
    assert "canary" not in ill.text


async def test_info_has_teis_keys_beside_ours(http: httpx.AsyncClient, replica: Replica) -> None:
    """Those that its clients read, with this replica's own limits."""
    told = (await http.get("/info")).json()

    assert told["model"] == told["model_id"] == told["served_model_name"] == replica.name
    assert told["model_type"] == {"embedding": {"pooling": "mean"}}
    assert told["model_dtype"] == "float32" and told["auto_truncate"] is True
    assert told["max_input_length"] == told["max_tokens"] == 256
    assert told["max_client_batch_size"] == 2048 and told["max_concurrent_requests"] == 512
    assert told["max_batch_tokens"] == told["limits"]["batch_tokens"]
    assert told["tokenization_workers"] >= 1
    assert told.keys() >= {"model_sha", "max_batch_requests", "version", "sha", "docker_label"}


REFUSED = {
    "no JSON": ("/embed", b"{", 400, "Validation"),
    "no inputs": ("/embed", b'{"inputs":[]}', 400, "Empty"),
    "no texts": ("/tokenize", b'{"inputs":[]}', 400, "Empty"),
    "no ids": ("/decode", b'{"ids":[]}', 400, "Empty"),
    "no sentences": (
        "/similarity",
        b'{"inputs":{"source_sentence":"a","sentences":[]}}',
        400,
        "Empty",
    ),
    "an empty text": ("/", b'{"inputs":""}', 422, "Validation"),
    "an empty text in a list": ("/tokenize", b'{"inputs":["a",""]}', 422, "Validation"),
    "an empty list of ids": ("/decode", b'{"ids":[[1],[]]}', 422, "Validation"),
    "too many inputs": ("/embed", b'{"inputs":[' + b'"a",' * 2048 + b'"a"]}', 422, "Validation"),
    "too many texts": ("/tokenize", b'{"inputs":[' + b'"a",' * 2048 + b'"a"]}', 422, "Validation"),
    "a text too long": ("/tokenize", b'{"inputs":"' + b"a" * 262_145 + b'"}', 422, "Validation"),
    "too many tokens": (
        "/tokenize",
        b'{"inputs":["%s"]}' % b'","'.join([b"a " * 110_000] * 3),
        413,
        "Validation",
    ),
    "too long": ("/embed", b'{"inputs":"%s","truncate":false}' % (b"a " * 300), 422, "Validation"),
    "385 dimensions": ("/embed", b'{"inputs":"a","dimensions":385}', 422, "Validation"),
    "no prompt": ("/embed", b'{"inputs":"a","prompt_name":"query"}', 422, "Validation"),
    "no such prompt": ("/tokenize", b'{"inputs":"a","prompt_name":"x"}', 422, "Validation"),
    "an unknown id": ("/decode", b'{"ids":[30522]}', 422, "Tokenizer"),
    "a negative id": ("/decode", b'{"ids":[-1]}', 422, "Tokenizer"),
    "broken Unicode": ("/embed", b'{"inputs":"\\ud800"}', 422, "Validation"),
}


@pytest.mark.parametrize(("path", "body", "status", "kind"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_refusal_has_teis_shape(
    http: httpx.AsyncClient, path: str, body: bytes, status: int, kind: str
) -> None:
    """Its words for what is wrong, and nothing of what came."""
    answer = await http.post(path, content=body)

    told = answer.json()
    assert (answer.status_code, told["error_type"]) == (status, kind), told
    assert told.keys() == {"error", "error_type"} and len(told["error"]) < 300


async def test_overload_and_a_failing_model_are_said_in_teis_words(
    http: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """429 with Retry-After; 424 for what the model did."""
    bound(monkeypatch, replica.batcher, requests=0)
    late = await http.post("/embed", json={"inputs": "a"})
    monkeypatch.setattr(Resolver, "outputs", None)  # a call that asks for the model now fails
    failed = await http.post("/embed", json={"inputs": "a"})

    assert (late.status_code, late.json()["error_type"]) == (429, "Overloaded")
    assert int(late.headers["retry-after"]) >= 1
    assert (failed.status_code, failed.json()["error_type"]) == (424, "Backend")
