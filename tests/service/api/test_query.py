"""What a query may hold: what the route knows, once."""

import re

import httpx
import pytest

from service.api import ROUTES
from service.shapes.call import Route

NAME = "all-MiniLM-L6-v2"
SENT = {"content-type": "application/json"}


ROWS = {f"{row.method} {row.path}": row for row in ROUTES if row.when is None}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_a_parameter_that_a_route_does_not_know_is_refused(
    client: httpx.AsyncClient, row: Route
) -> None:
    """Its sender expects it to do something; its name is not repeated."""
    path = row.path.format(model=NAME, id=NAME, version="1")

    answer = await client.request(row.method, f"{path}?a.canary=true", content=b"", headers=SENT)

    assert answer.status_code == row.status("unknown_field")
    assert "canary" not in answer.text
    # TypeSafe's places are lists
    assert re.search(r'query(: u|"\],"msg":"U)nknown parameter of 8 characters', answer.text)


@pytest.mark.parametrize(
    ("query", "code", "detail"),
    [
        ("dryrun=true", "unknown_field", 'did you mean "dry_run"?'),
        ("dry_run=false&dry_run=true", "out_of_range", "dry_run: expected it once"),
        ("dry_run=1", "out_of_range", "dry_run: expected true or false"),
    ],
)
async def test_a_dry_run_is_asked_for_in_one_way(
    client: httpx.AsyncClient, query: str, code: str, detail: str
) -> None:
    """What is misspelt would run the request, and of two one would count."""
    answer = await client.post(f"/v1/encode?{query}", json={"inputs": ["a"]})

    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert detail in answer.json()["detail"]
