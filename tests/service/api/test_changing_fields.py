"""A field that changes answers of some API is followed or refused by name, on every route."""

import json
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from service.api import ROUTES
from service.tables.refusals import refusal_of
from service.tables.wording.changing_fields import CHANGING_FIELDS
from service.tables.wording.wire import IGNORED, ForeignRequest

FOREIGN = {row.path: row for row in ROUTES if row.foreign}  # of one path, either of its rows
REQUESTS: dict[str, type[ForeignRequest]] = {
    f"{row.path} {row.request.__name__}": row.request for row in ROUTES if row.foreign
}


@pytest.mark.parametrize("request_type", REQUESTS.values(), ids=REQUESTS)
def test_none_of_them_is_ignored(request_type: type[ForeignRequest]) -> None:
    """Each that the request does not know is refused, and the refusal names it; null is no word."""
    known = {*request_type.named_fields(), *request_type.aliases}
    for name in CHANGING_FIELDS - known:
        ignored: dict[str, None] = {}
        with pytest.raises(ValidationError) as error:
            request_type.parse(json.dumps({name: "a"}).encode(), ignored)

        faults = {fault.loc: fault.code for fault in refusal_of(error.value).faults}
        assert faults[(name,)] == "unknown_field" and not ignored
        with pytest.raises(ValidationError) as error:  # for want of what it needs
            request_type.parse(json.dumps({name: None}).encode(), ignored)
        assert (name,) not in {fault.loc for fault in refusal_of(error.value).faults}


@pytest.mark.parametrize("path", FOREIGN)
async def test_the_refusal_says_so_to_the_client(client: httpx.AsyncClient, path: str) -> None:
    """In each API's form, and also where Hugging Face's clients put it."""
    asked = FOREIGN[path].examples[0].value
    path = path.replace("{model}", "all-MiniLM-L6-v2").replace("{version}", "1")
    bodies: list[Any] = [{**asked, "pooling": "mean"}, {**asked, "parameters": {"pooling": "mean"}}]
    for body in bodies:
        refused = await client.post(path, json=body)
        assert refused.status_code in (400, 422)
        assert "pooling" in refused.text and "t changes answers of other" in refused.text
        assert IGNORED not in refused.headers


async def test_a_document_may_hold_any_field(client: httpx.AsyncClient) -> None:
    """Which is what its owner knows of it, and no wish."""
    document = {"text": "All is well", "task": "a", "prompt": "b"}
    answer = await client.post("/v1/embeddings", json={"input": [document]})

    assert answer.status_code == 200 and answer.headers[IGNORED] == "task, prompt"
