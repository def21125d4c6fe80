"""Bodies of more values than a request needs, and of wrong ones, cost no more than few would."""

from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import ValidationError

from service.door import door
from service.door.body import MOST_KEYS
from service.tables.refusals import MOST_SHOWN_FAULTS, REFUSALS, Refused, refusal_of
from tests.attacks import HERE, LISTS, PLACES, VALUES, keys, many, structures

if TYPE_CHECKING:
    from tests.attacks import Attack

PLACED = {path: (path, body) for path, body in LISTS.items()} | PLACES
PREFIX = "/minilm"
FULL = [attack for attack in structures() if attack.full]


def anywhere() -> Iterator[Any]:
    """Every place with one kind of value, kinds in turn; below a prefix one of a route.

    `make prove` tries the others.
    """
    kinds, routes, places = cycle(VALUES), set[Any](), set[str]()
    for attack in FULL:
        place, _, kind = attack.name.partition(" of ")
        if kind and place not in places:
            places.add(place)
            chosen = next(kinds)
        first = (attack.path, *attack.headers) not in routes
        routes.add((attack.path, *attack.headers))
        kept = kind == chosen if kind else attack.name.startswith("/v1/encode")
        once, again = [[] if wanted else [pytest.mark.prove] for wanted in (kept, first)]
        yield pytest.param("", attack, id=attack.name, marks=once)
        yield pytest.param(PREFIX, attack, id=f"{attack.name}, below a prefix", marks=again)


@pytest.fixture(params=["", PREFIX], ids=["at the root", "below a prefix"])
def prefix(request: pytest.FixtureRequest) -> str:
    """Where Ray has put the routes."""
    return str(request.param)


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many errors each request that was refused had."""
    counts: list[int] = []

    def counted(error: BaseException) -> Refused:
        if isinstance(error, ValidationError):
            counts.append(error.error_count())
        return refusal_of(error)

    monkeypatch.setattr(door, "refusal_of", counted)
    return counts


@pytest.mark.parametrize(("prefix", "attack"), list(anywhere()))
async def test_what_holds_too_many_values_is_never_parsed(
    client: httpx.AsyncClient, attack: "Attack"
) -> None:
    """Wherever they stand, as JSON, before binary tensors and in a file."""
    answer = await client.post(attack.path, content=attack.body(), headers=attack.headers)

    assert answer.status_code in attack.statuses
    assert REFUSALS["too_many_values"].title in answer.text


@pytest.mark.parametrize("place", PLACED)
async def test_of_wrong_values_in_a_list_few_errors_are_made(
    client: httpx.AsyncClient, errors: list[int], place: str
) -> None:
    """Of hundreds; a list stops at its first."""
    path, body = PLACED[place]

    for value in VALUES.values():
        sent = body.replace(HERE, many(value, most=300))
        await client.post(path, content=sent, headers={"content-type": "application/json"})

    assert max(errors, default=0) <= MOST_SHOWN_FAULTS


@pytest.mark.parametrize("place", PLACED)
async def test_of_unknown_fields_as_many_errors_are_made_as_an_object_may_have_keys(
    client: httpx.AsyncClient, errors: list[int], place: str
) -> None:
    """And each object that must be there may lack its own."""
    path, body = PLACED[place]
    sent = body.replace(HERE, keys(MOST_KEYS))

    answer = await client.post(path, content=sent, headers={"content-type": "application/json"})

    assert answer.status_code in (400, 422)
    assert max(errors, default=0) <= MOST_KEYS + MOST_SHOWN_FAULTS
