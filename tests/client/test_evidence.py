"""What carries a document's score, asked by both clients over real HTTP."""

from typing import Any

import httpx
import pytest

from headlight_client import NoAnswer, RequestRefused
from headlight_client.evidence import read_highlighted

QUERY = "When does the train leave?"
TEXTS = ["The sky is blue. The train leaves at nine. Dogs bark.", "A cat slept."]
GATES = [{"layer": 0, "head": 0, "scale": 0.5}]


async def test_evidence_comes_typed(call: Any, client: httpx.AsyncClient, address: str) -> None:
    """The numbers of the JSON, best first; what a short document does not have is None."""
    options = {"top": 1, "prune": 0.4, "unit": "sentence", "method": "sum"}
    told = await call(address, "highlight", QUERY, tuple(TEXTS), **options)
    body = {"query": QUERY, "documents": TEXTS, **options}
    expected = (await client.post("/v1/highlight", json=body)).json()

    assert [one.index for one in told.results] == [0, 1]
    for one, row in zip(told.results, expected["results"], strict=True):
        assert one.score == row["score"] and one.rest == row["rest"]
        assert one.without == row["without"] and one.pruned == row["pruned"]
        assert (one.method, one.length, one.truncated) == ("sum", row["length"], False)
        assert [
            {**h._asdict(), "characters": [*h.characters], "units": [*h.units]}
            for h in one.highlights
        ] == row["highlights"]
    long, short = told.results
    assert TEXTS[0][slice(*long.highlights[0].characters)] == "The train leaves at nine."
    assert long.control is not None
    assert long.control._asdict() == expected["results"][0]["control"]
    assert short.control is None and short.without is None
    assert told.space == expected["space"]
    assert told.origin == {name: expected[name] for name in ("model", "weights", "numerics")}
    assert told.usage.tokens == expected["usage"]["tokens"]


async def test_no_shortened_text_comes_unasked(call: Any, address: str) -> None:
    """Nor a control that was refused."""
    told = await call(address, "highlight", QUERY, TEXTS[:1], control=False, top=1)

    assert told.results[0].method == "alone" and told.results[0].rest is None
    assert told.results[0].pruned is None and told.results[0].control is None


async def test_a_query_is_any_input(call: Any, client: httpx.AsyncClient, address: str) -> None:
    """Ids are answered as their text."""
    body = {"inputs": [QUERY], "tokens": True}
    ids = (await client.post("/v1/encode", json=body)).json()["data"][0]["token_ids"]
    by_ids, by_text = [
        await call(address, "highlight", query, TEXTS, gates=GATES) for query in (ids, QUERY)
    ]
    assert by_ids.results == by_text.results


async def test_a_refusal_says_where(call: Any, address: str) -> None:
    """An empty document, by its place."""
    with pytest.raises(RequestRefused) as refused:
        await call(address, "highlight", QUERY, ["a", ""])

    assert refused.value.code == "sequence_empty"
    assert refused.value.errors[0].loc[:2] == ("documents", 1)


@pytest.mark.parametrize(
    ("documents", "options", "said"),
    [("a text", {}, "documents must be a list"), (["a text"], {"tops": 3}, "option: tops")],
)
async def test_what_would_be_misread_is_refused_before_it_is_sent(
    call: Any, documents: Any, options: dict[str, Any], said: str
) -> None:
    """A lone text, which is a list of letters too, and an option that there is not."""
    with pytest.raises(TypeError, match=said):
        await call("http://127.0.0.1:9", "highlight", QUERY, documents, **options)


@pytest.mark.parametrize("told", [[], {}, {"results": [{}]}, {"results": [{"highlights": [1]}]}])
async def test_an_answer_of_another_service_is_none(told: Any) -> None:
    """However far it looks like one."""
    with pytest.raises(NoAnswer, match="Headlight's format"):
        read_highlighted(told)
