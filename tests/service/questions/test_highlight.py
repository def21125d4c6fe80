"""What carries a document's score, held to brute force and to the routes for scores alone."""

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file

from service.files.weights import BUNDLED_MODEL, locate_model
from service.questions.highlight import evidence
from service.questions.highlight.passage import DRAWS, Passage
from tests.conftest import posted
from tests.late_interaction import pylate
from tests.served_model import Listen, Outer, Served, serve
from tests.task_heads import checkpoint, embedder

QUERY = "When does the train leave?"
TEXT = "The station is old. The train leaves at noon. 犬が来た。Bring 😀 a coat.\r\n\r\nIt rains"
SENTENCES = ["The station is old.", "The train leaves at noon.", "犬が来た。", "Bring 😀 a coat."]
SENTENCES += ["It rains"]
CLOSE = 1e-6
SHORT = "The station is old. The train leaves at noon. 犬が来た。"
WORDS = "embeddings.word_embeddings.weight"
LONG = TEXT + "." + f" It{' rains and' * 14} rains." * 10  # more than 256 tokens
UNITS = ("sentence", "word", "token")


async def ask(http: httpx.AsyncClient, *documents: Any, status: int = 200, **body: Any) -> Any:
    """What POST /v1/highlight answers."""
    asked = {"query": QUERY, "documents": documents, **body}
    return await posted(http, "/v1/highlight", asked, status=status)


async def one(http: httpx.AsyncClient, text: str = TEXT, **body: Any) -> Any:
    """What it answers of one document."""
    (told,) = (await ask(http, text, **body))["results"]
    return told


async def cosine(http: httpx.AsyncClient, text: str, left: Any = QUERY, **body: Any) -> float:
    """What POST /v1/similarity answers."""
    body = {"left": left, "right": [text], "form": "score", **body}
    score: float = (await http.post("/v1/similarity", json=body)).json()["right"][0]["score"]
    return score


async def maxsim(http: httpx.AsyncClient, text: str) -> float:
    """What POST /v1/maxsim answers."""
    body = {"query": QUERY, "documents": [text]}
    score: float = (await http.post("/v1/maxsim", json=body)).json()["results"][0]["score"]
    return score


async def ranked(http: httpx.AsyncClient, text: str) -> float:
    """What POST /v1/rerank answers."""
    body = {"query": QUERY, "documents": [text]}
    answer = await http.post("/v1/rerank", json=body)
    score: float = answer.json()["results"][0]["relevance_score"]
    return score


def units(text: str, told: Any) -> Passage:
    """The units of an answer that shows all of them."""
    spans = sorted(tuple(unit["characters"]) for unit in told["highlights"])
    return Passage(text, 0, len(text), spans, spans, [])


async def hold_to(
    score: Any, http: httpx.AsyncClient, unit: str, text: str = TEXT, **body: Any
) -> None:
    """Hold controls to the scores of the texts that lack units."""
    every = await one(http, text, unit=unit, top=1000, **body)
    told = await one(http, text, unit=unit, top=1, **body)
    whole = units(text, every)
    kept = [whole.spans.index(tuple(unit["characters"])) for unit in told["highlights"]]
    drawn = [await score(http, whole.without(draw)) for draw in whole.draw_others(kept)]

    assert every["without"] is None and every["control"] is None
    assert told["highlights"] == every["highlights"][:1]
    assert len(drawn) == min(DRAWS, len(whole.spans) - 1)
    lost = await score(http, whole.without(kept))
    found = [told["score"], told["without"], *told["control"].values()]
    expected = [await score(http, text), lost, fmean(drawn), stdev(drawn)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("unit", UNITS)
async def test_shares_are_those_of_the_tokens_and_add_up(
    client: httpx.AsyncClient, unit: str
) -> None:
    """Each by brute force over POST /v1/encode's token vectors, in float64."""
    told = await one(client, unit=unit, method="sum", top=1000)
    body = {"inputs": [QUERY, TEXT], "tokens": True}
    query, document = (await client.post("/v1/encode", json=body)).json()["data"]
    rows, columns = (
        np.array(side["token_vectors"]) / len(side["tokens"]) for side in (query, document)
    )
    lengths = np.linalg.norm(rows.sum(0)) * np.linalg.norm(columns.sum(0))
    shares = columns @ rows.sum(0) / lengths

    for unit_told in told["highlights"]:
        start, end = unit_told["characters"]
        own = [i for i, (a, b) in enumerate(document["offsets"]) if start <= a < b <= end]
        assert unit_told["text"] == TEXT[start:end]
        assert unit_told["share"] == pytest.approx(shares[own].sum(), abs=CLOSE)
    added = sum(unit_told["share"] for unit_told in told["highlights"]) + told["rest"]
    assert added == pytest.approx(told["score"], abs=CLOSE)
    order = [unit_told["share"] for unit_told in told["highlights"]]
    assert order == sorted(order, reverse=True) and told["method"] == "sum"


async def test_sentences_have_their_characters_and_numbers(client: httpx.AsyncClient) -> None:
    """Behind an emoji, in Chinese characters and over CRLF."""
    told = sorted((await one(client, top=9))["highlights"], key=lambda unit: unit["units"])
    assert [unit["text"] for unit in told] == SENTENCES
    assert [unit["units"] for unit in told] == [[place, place + 1] for place in range(5)]


async def test_what_is_not_shown_is_in_the_rest(client: httpx.AsyncClient) -> None:
    """With the special tokens."""
    few, every = [await one(client, method="sum", top=top) for top in (2, 5)]
    hidden = sum(unit["share"] for unit in every["highlights"][2:])
    assert few["rest"] == pytest.approx(every["rest"] + hidden, abs=1e-12)


@pytest.mark.parametrize("unit", UNITS)
async def test_controls_are_scores_of_the_shortened_texts(
    client: httpx.AsyncClient, unit: str
) -> None:
    """To the bit."""
    await hold_to(cosine, client, unit, method="sum")


async def test_a_query_is_an_item(client: httpx.AsyncClient) -> None:
    """A text, its ids and its embeddings are answered alike, to the bit."""
    body = {"inputs": [QUERY], "tokens": True}
    ids = (await client.post("/v1/encode", json=body)).json()["data"][0]["token_ids"]
    words = load_file(locate_model(BUNDLED_MODEL).folder / "model.safetensors")[WORDS]
    expected = await one(client)
    for query in ({"text": QUERY}, {"token_ids": ids}, {"embeddings": words[ids].tolist()}):
        assert await one(client, query=query) == expected


async def test_gates_are_of_every_text(client: httpx.AsyncClient) -> None:
    """Of those that lack units too; those of the query are its own."""
    gates = [{"layer": 2, "head": head, "scale": 0.0} for head in range(9)]
    plain, own = await one(client), {"text": QUERY, "gates": gates}
    assert (await one(client, gates=gates))["score"] != plain["score"]
    await hold_to(partial(cosine, gates=gates), client, "sentence", gates=gates)
    await hold_to(partial(cosine, left=own), client, "sentence", query=own)


async def test_an_answer_has_the_same_bits_among_others(client: httpx.AsyncClient) -> None:
    """Which come best first."""
    others = ["A coat.", {"text": TEXT}, "The train left. It was full. All slept. Rain fell."]
    told = (await ask(client, *others))["results"]
    alone = await one(client)
    (among,) = [result for result in told if result["index"] == 1]
    assert {**among, "index": 0} == alone
    assert [result["score"] for result in told] == sorted((r["score"] for r in told), reverse=True)


async def test_equal_ones_come_in_order(client: httpx.AsyncClient) -> None:
    """Units, and documents."""
    same = "Go home! Go home! Go home! It rains."
    told = (await ask(client, same, same, top=9, prune=0))["results"]
    assert [result["index"] for result in told] == [0, 1]
    units = [unit["units"][0] for unit in told[0]["highlights"]]
    assert [unit for unit in units if unit < 3] == [0, 1, 2]


async def test_a_document_of_too_few_units_has_no_control(client: httpx.AsyncClient) -> None:
    """Nor one for which none is asked; without its highlights it has a score if any is left."""
    for text, top in (("One", 1), (TEXT, 5)):
        told = await one(client, text, top=top)
        assert (told["without"], told["control"]) == (None, None)
    told = await one(client, control=False)
    assert (told["without"], told["control"]) == (None, None)
    for top in (3, 4):
        told = await one(client, top=top)
        assert told["without"] is not None and told["control"] is None


async def test_a_sentence_that_carries_a_document_stands_out(client: httpx.AsyncClient) -> None:
    """By many deviations of the others, of which each is left out once."""
    told = await one(client, "Cats sleep. Cats purr. The train leaves at noon. Cats eat.", top=1)
    control = told["control"]
    assert told["highlights"][0]["text"] == "The train leaves at noon."
    assert control["without_random"] - told["without"] > 5 * control["deviation"] > 0


async def test_a_blank_document_has_no_unit(client: httpx.AsyncClient) -> None:
    """Its special tokens make the score."""
    told = await one(client, " \r\n ", method="sum", prune=0.5)
    assert (told["highlights"], told["pruned"]) == ([], "")
    assert told["rest"] == pytest.approx(told["score"], abs=CLOSE)


async def test_a_pruned_text_keeps_the_strongest_units_that_fit(client: httpx.AsyncClient) -> None:
    """In the document's order; one at least, and all of them at 1."""
    strongest = (await one(client, top=1))["highlights"][0]["text"]
    assert (await one(client, prune=0))["pruned"] == strongest == SENTENCES[1]
    assert (await one(client, prune=1))["pruned"] == TEXT
    half = (await one(client, prune=0.6))["pruned"]
    assert SENTENCES[1] in half and len(half) <= 0.6 * len(TEXT)
    places = [TEXT.index(part) for part in SENTENCES if part in half]
    assert len(places) > 1 and places == sorted(places)


async def test_what_was_cut_is_no_part_of_the_document(client: httpx.AsyncClient) -> None:
    """And is refused where nothing is to be cut."""
    told = await one(client, LONG, method="sum", truncate="right", top=1000, control=False)
    assert told["truncated"]
    shown = max(unit["characters"][1] for unit in told["highlights"])
    assert shown < len(LONG) and told["length"] > 256
    assert "documents" in str(await ask(client, "a", LONG, method="sum", status=422))


@pytest.mark.parametrize("unit", UNITS)
async def test_alone_each_unit_has_the_score_of_its_own_text(first: Served, unit: str) -> None:
    """To the bit, best first; a text of one unit and what is pruned go by it too."""
    told = await one(first.http, SHORT, unit=unit, top=1000, prune=0)
    shown = told["highlights"]
    assert (told["method"], told["rest"]) == ("alone", None)
    assert told == await one(first.http, SHORT, unit=unit, top=1000, prune=0, method="alone")
    assert [found["share"] for found in shown] == [
        await cosine(first.http, found["text"]) for found in shown
    ]
    assert [found["share"] for found in shown] == sorted((f["share"] for f in shown), reverse=True)
    assert len(shown) >= 3 and told["pruned"] == shown[0]["text"]
    await hold_to(cosine, first.http, unit, SHORT)
    single = await one(first.http, "One", unit=unit)
    assert single["highlights"][0]["share"] == single["score"]


async def test_alone_a_document_that_was_cut_has_all_its_sentences(
    client: httpx.AsyncClient,
) -> None:
    """Also those that were not read with it."""
    told = await one(client, LONG, truncate="right", top=1000)
    assert told["truncated"] and len(told["highlights"]) == 15
    text = LONG + " The train leaves at noon, the last one at ten."
    told = await one(client, text, truncate="right", top=1, control=False)
    assert told["highlights"][0]["text"] == text[len(LONG) + 1 :]
    blank = await one(client, " ", prune=0.5)
    assert (blank["highlights"], blank["pruned"]) == ([], "")


async def test_what_takes_too_much_is_refused_before_any_work(client: httpx.AsyncClient) -> None:
    """By its tokens, and by its characters where they hold no token."""
    alone = {"top": 1, "truncate": "right", "control": False}
    short = ["Go! " * 40] * 64
    assert (await ask(client, *short, status=422, **alone))["code"] == "batch_too_large"
    wide = [("The" + " a" * 180 + ". ") * 27] * 64
    assert (await ask(client, *wide, status=413, **alone))["code"] == "too_many_tokens"
    padded = ["It rains. " * 3 + " " * 9000 + "It rains."] * 64
    assert (await ask(client, *padded, status=422, top=1))["code"] == "batch_too_large"


@pytest_asyncio.fixture(scope="module")
async def late(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """A model of many vectors."""
    made = pylate(tmp_path_factory.mktemp("late"))
    async with serve(made.folder, "late", listen, outer) as served:
        yield served


@pytest_asyncio.fixture(scope="module")
async def reranker(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """A cross-encoder."""
    folder = tmp_path_factory.mktemp("reranker")
    checkpoint(folder, "ForSequenceClassification", num_labels=1)
    async with serve(folder, "reranker", listen, outer) as served:
        yield served


@pytest_asyncio.fixture(scope="module")
async def first(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """A small model, pooled by its first token."""
    folder = tmp_path_factory.mktemp("first")
    embedder(folder, "cls_token")
    async with serve(folder, "first", listen, outer) as served:
        yield served


@pytest.mark.parametrize("unit", UNITS)
async def test_occlusion_leaves_out_units(first: Served, unit: str) -> None:
    """One at a time; a document of one unit has the whole score in it."""
    told = await one(first.http, SHORT, unit=unit, method="occlusion", top=1000)
    whole = units(SHORT, told)
    assert (told["method"], told["rest"]) == ("occlusion", None)
    for shown in told["highlights"]:
        place = whole.spans.index(tuple(shown["characters"]))
        worth = told["score"] - await cosine(first.http, whole.without([place]))
        assert shown["share"] == worth
    order = [shown["share"] for shown in told["highlights"]]
    assert order == sorted(order, reverse=True)
    await hold_to(cosine, first.http, unit, SHORT, method="occlusion")
    alone = await one(first.http, "One", method="occlusion")
    assert alone["highlights"][0]["share"] == alone["score"]


async def test_every_model_can_leave_out_units(client: httpx.AsyncClient, late: Served) -> None:
    """Also one whose exact shares are known."""
    for http, score in ((client, cosine), (late.http, maxsim)):
        told = await one(http, SHORT, method="occlusion", top=9)
        whole, scored = units(SHORT, told), await score(http, SHORT)
        for shown in told["highlights"]:
            without = await score(http, whole.without([shown["units"][0]]))
            assert shown["share"] == scored - without and told["rest"] is None


async def test_a_method_that_the_model_lacks_is_refused(
    client: httpx.AsyncClient, first: Served, reranker: Served
) -> None:
    """With those that it has."""
    for http, asked, offered in (
        (client, "maxsim", '"alone", "occlusion" or "sum"'),
        (first.http, "sum", '"alone" or "occlusion"'),
        (reranker.http, "sum", '"occlusion" or "alone"'),
    ):
        refused = await ask(http, SHORT, method=asked, status=422)
        expected = f'method: expected {offered} for this model, received "{asked}".'
        assert (refused["code"], refused["detail"]) == ("out_of_range", expected)


async def test_the_pages_example_keeps_its_answer_when_it_is_shortened(
    client: httpx.AsyncClient,
) -> None:
    """To 30 %, where exact shares lose it."""
    written = Path(evidence.__file__).parents[2] / "page" / "evidence.js"
    script = written.read_text("utf-8").partition("EXAMPLE = [")[2].partition(",\n];")[0]
    query, document = json.loads(f"[{script}]")
    answer = document[document.index("The world will little note") :]

    for method, kept in ((None, True), ("sum", False)):
        told = await one(client, document, query=query, method=method, prune=0.3)
        assert (answer in told["pruned"]) is kept and len(told["pruned"]) <= 0.3 * len(document)
        assert (told["highlights"][0]["text"] == answer) is kept


async def test_late_interaction_shares_its_matches(late: Served) -> None:
    """Which add up with those of special tokens; controls are POST /v1/maxsim's scores."""
    short = "All is well. A dog ate."
    told = await one(late.http, short, top=2)
    body = {"query": QUERY, "documents": [short]}
    answer = (await late.http.post("/v1/maxsim", json=body)).json()
    matched, matched_ids = answer["results"][0], answer["query"]["token_ids"]
    by = {0: 0.0, 1: 0.0, None: 0.0}
    for _, token, value in matched["matches"]:
        start, end = matched["offsets"][token]
        by[None if start == end else int(start >= len("All is well. "))] += value
    shares = {unit["units"][0]: unit["share"] for unit in told["highlights"]}
    assert told["method"] == "maxsim" and told["score"] == matched["score"]
    assert [shares[0], shares[1], told["rest"]] == pytest.approx([by[0], by[1], by[None]], abs=1e-5)
    few = await one(late.http, short, top=1)
    left = short[:12] if few["highlights"][0]["units"] == [1, 2] else short[13:]
    assert few["without"] == await maxsim(late.http, left)
    ids = {"token_ids": matched_ids[:5]}
    body = {"query": ids, "documents": [short]}
    scored = (await late.http.post("/v1/maxsim", json=body)).json()["results"][0]["score"]
    assert (await one(late.http, short, query=ids))["score"] == scored != told["score"]


async def test_alone_units_are_scored_as_the_model_scores(late: Served, reranker: Served) -> None:
    """By late interaction, and with the query."""
    for served, score in ((late, maxsim), (reranker, ranked)):
        told = await one(served.http, SHORT, method="alone", top=9)
        for unit in told["highlights"]:
            assert unit["share"] == await score(served.http, unit["text"])


async def test_a_reranker_leaves_out_one_sentence_at_a_time(reranker: Served) -> None:
    """Each share is the score less POST /v1/rerank's of the text without the sentence."""
    told = await one(reranker.http, SHORT, top=9)
    whole = units(SHORT, told)
    score = await ranked(reranker.http, SHORT)
    assert (told["method"], told["rest"]) == ("occlusion", None)
    for unit in told["highlights"]:
        without = whole.without([unit["units"][0]])
        worth = score - await ranked(reranker.http, without)
        assert unit["share"] == pytest.approx(worth, abs=CLOSE)
    await hold_to(ranked, reranker.http, "sentence", SHORT)
    for query, code in (
        ({"token_ids": [2, 3]}, "invalid_type"),
        ({"text": QUERY, "gates": [{"layer": 0, "head": 0, "scale": 0}]}, "unknown_field"),
        ("a " * 200_000, "text_too_long"),
    ):
        refused = await ask(reranker.http, *["a"] * 64, query=query, status=422)
        assert refused["code"] == code
    query = {"query": "a " * 100_000, "truncate": "right", "top": 1}
    refused = await ask(reranker.http, SHORT, status=422, **query)
    assert refused["code"] == "batch_too_large"
    body = {"query": QUERY, "documents": [SHORT], "prompt_name": "query"}
    assert (await reranker.http.post("/v1/highlight", json=body)).json()["code"] == (
        "prompt_not_found"
    )
