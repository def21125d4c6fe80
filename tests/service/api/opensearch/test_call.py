"""OpenSearch's semantic highlighter: the requests of its sources, byte for byte.

There is no client of it in Python: a connector fills a template. What it does with an answer is
written again here, after neural-search's HighlightTagApplier.java.
"""

from typing import Any

import httpx
import pytest

from service.api import opensearch
from service.api.dialect import Served
from service.edge.asked import Asked
from service.memory import Hold, Memory

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/predictions/semantic_highlighter"
JSON = {"content-type": "application/json"}
# neural-search's src/test/resources/remote-models/torchserve/README.md
CURL = (
    b'{"question": "What is OpenSearch?", "context": "OpenSearch is a search engine."}',
    "OpenSearch is a search engine.",
)
# opensearch-py-ml's docs/source/examples/semantic_highlighting/README.md; its own model marks the
# two other sentences, this one the one that has the question's words
README = (
    b'{\n  "question": "What is the treatment for Alzheimer\'s disease?",\n  "context": "'
    b"Alzheimers disease is a progressive neurodegenerative disorder. Traditional treatments "
    b"include cholinesterase inhibitors and memantine. Recent clinical trials investigating "
    b'monoclonal antibodies have shown promise."\n}',
    "Alzheimers disease is a progressive neurodegenerative disorder.",
)
# what ml-commons' blueprint makes of a single request, with its template's unused field
SINGLE = (
    b'{ "question": "What causes high blood pressure?", "context": "High blood pressure can be '
    b"caused by various factors including genetics, poor diet, lack of exercise, and stress. "
    b'Sodium intake and obesity are major contributors.", "inputs": [] }',
    "High blood pressure can be caused by various factors including genetics, poor diet, lack of "
    "exercise, and stress.",
)
# and of two pairs of its batch
BATCH = (
    b'{ "question": "", "context": "", "inputs": [{"question":"What are the symptoms of heart '
    b'failure?","context":"Heart failure symptoms include shortness of breath, swelling in the feet'
    b" and ankles, fatigue, and irregular pulse. Patients may also experience difficulty sleeping "
    b'flat in bed."},{"question":"How is diabetes managed?","context":"Diabetes management involves'
    b" monitoring blood sugar levels, maintaining a healthy diet, regular exercise, and medication "
    b'when necessary. Insulin therapy may be required for some patients."}] }'
)
EMOJI = "The sky is \U0001f535. \U0001f682 The train leaves at noon. \U0001f9e5!"


def tagged(text: str, highlights: list[dict[str, int]]) -> str:
    """A text with what OpenSearch makes of spans, in Java's units; it takes them in order only."""
    units, made, at = text.encode("utf-16-le"), b"", 0
    for span in highlights:
        start, end = 2 * span["start"], 2 * span["end"]
        assert at <= start < end <= len(units)
        made += units[at:start] + "<em>".encode("utf-16-le")
        made += units[start:end] + "</em>".encode("utf-16-le")
        at = end
    return (made + units[at:]).decode("utf-16-le")


async def ask(client: httpx.AsyncClient, body: bytes | dict[str, Any], status: int = 200) -> Any:
    """What the route answers."""
    sent = {"content": body, "headers": JSON} if isinstance(body, bytes) else {"json": body}
    answer = await client.post(PATH, **sent)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize(("body", "expected"), [CURL, README, SINGLE])
async def test_the_requests_of_its_sources_are_answered(
    client: httpx.AsyncClient, body: bytes, expected: str
) -> None:
    """With one sentence, and nothing besides."""
    told = await ask(client, body)
    context = httpx.Response(200, content=body).json()["context"]
    assert [*told] == ["highlights"]
    assert f"<em>{expected}</em>" in tagged(context, told["highlights"])


async def test_a_batch_is_answered_in_order(client: httpx.AsyncClient) -> None:
    """Each as if it were asked by itself, whichever question it has."""
    told = (await ask(client, BATCH))["highlights"]
    pairs = httpx.Response(200, content=BATCH).json()["inputs"]
    assert told == [(await ask(client, pair))["highlights"] for pair in pairs]
    crossed = [{**pairs[0], "context": EMOJI}, {"question": "What colour?", "context": EMOJI}]
    crossed += [{"question": "When does the train leave?", "context": EMOJI}, pairs[1]]
    told = (await ask(client, {"inputs": crossed}))["highlights"]
    assert told == [(await ask(client, pair))["highlights"] for pair in crossed]
    assert tagged(EMOJI, told[1]).startswith("<em>The sky")
    assert "<em>\U0001f682 The train leaves at noon.</em> \U0001f9e5!" in tagged(EMOJI, told[2])


async def test_a_long_context_is_read_to_its_end(client: httpx.AsyncClient) -> None:
    """And an empty one, or a blank one, has no sentence."""
    long = "It rains and rains. " * 300 + "The train leaves at noon."
    for context, expected in ((long, f"{long[:6000]}<em>{long[6000:]}</em>"), ("", ""), (" ", " ")):
        pair = {"question": "When does the train leave?", "context": context}
        assert tagged(context, (await ask(client, pair))["highlights"]) == expected
        (told,) = (await ask(client, {"inputs": [pair]}))["highlights"]
        assert tagged(context, told) == expected


async def test_a_refusal_names_the_place_in_the_request(client: httpx.AsyncClient) -> None:
    """Of questions and contexts, of one or of several."""
    asked, long = {"question": "a", "context": "b"}, "a" * 300_000
    for body, loc in (
        ({**asked, "context": long}, ["context"]),
        ({**asked, "question": long}, ["question"]),
        ({"inputs": [asked, {**asked, "context": long}]}, ["inputs", 1, "context"]),
        ({"inputs": [asked, {**asked, "question": ""}]}, ["inputs", 1, "question"]),
    ):
        assert (await ask(client, body, 422))["errors"][0]["loc"] == loc


@pytest.mark.parametrize(
    ("names", "prompts", "question", "context"),
    [
        (["m"], ["query", "document"], (None, "query"), (None, "document")),
        (
            ["m", "m:retrieval"],
            ["query", "document"],
            ("retrieval", "query"),
            ("retrieval", "document"),
        ),
        (
            ["m", "m:retrieval.query", "m:retrieval.passage"],
            [],
            ("retrieval.query", None),
            ("retrieval.passage", None),
        ),
        (["m", "m:mine"], [], (None, None), (None, None)),
    ],
    ids=["prompts", "both", "adapters", "neither"],
)
async def test_questions_and_contexts_are_read_as_the_checkpoint_has_them_for_retrieval(
    names: list[str], prompts: list[str], question: tuple[Any, Any], context: tuple[Any, Any]
) -> None:
    """By the names of Jina's tasks, since OpenSearch names none."""
    served = Served(names, ["encode"], 1, 1 << 20, 64, prompts)

    asked = Asked("POST", "", "/", CURL[0], {}, Hold(Memory(), 1))

    request = opensearch.parse(CURL[0], asked, served).request

    assert request.first is not None
    assert (request.first.task, request.first.prompt_name) == question
    assert (request.task, request.prompt_name) == context
