"""What heads do, asked by both clients over real HTTP."""

from typing import Any

import httpx
import pytest

from headlight_client import NoAnswer
from headlight_client.heads import Heads


async def test_heads_are_found_by_their_numbers(
    call: Any, address: str, client: httpx.AsyncClient
) -> None:
    """As GET /v1/heads has them."""
    expected = (await client.get("/v1/heads")).json()

    heads = await call(address, "heads")

    assert heads.facts == expected
    assert heads[3, 1] == expected["heads"][37] and heads[3, 1]["role"] == "object"
    with pytest.raises(KeyError):
        heads[6, 0]
    assert repr(heads) == "Heads('all-MiniLM-L6-v2': 6 layers of 12)"


async def test_heads_are_a_mapping_by_layer_and_head(call: Any, address: str) -> None:
    """In the order of the answer, as the other results by head are dicts."""
    heads = await call(address, "heads")

    assert [*heads] == [(layer, head) for layer in range(6) for head in range(12)]
    assert [*heads.values()] == heads.facts["heads"] and len(heads) == 72
    assert (5, 11) in heads and (6, 0) not in heads


@pytest.mark.parametrize("answer", [None, [], {}, {"heads": [{"layer": 0}]}], ids=str)
async def test_what_is_no_survey_is_said_to_be_none(answer: Any) -> None:
    """A proxy's page, or another version's."""
    with pytest.raises(NoAnswer):
        Heads.read(answer)
