"""Attention step by step, asked by both clients over real HTTP."""

import math
from typing import Any

import httpx
import numpy as np
import pytest

from headlight_client import NoAnswer, RequestRefused
from headlight_client.lessons import read_steps


async def test_values_are_mixed_as_by_hand(call: Any, address: str) -> None:
    """Arrays in and out, in float64; a mask hides the last key."""
    draw = np.random.default_rng(7).normal
    query, key, value = draw(size=(2, 6)), draw(size=(3, 6)), draw(size=(3, 4))
    mask = np.array([[True, True, False]] * 2)

    steps = await call(address, "attend", query=query, key=key, value=value, heads=2, mask=mask)

    for head in range(2):
        for row in range(2):
            scores = [
                sum(query[row, 3 * head + i] * key[k, 3 * head + i] for i in range(3))
                / math.sqrt(3)
                for k in range(2)
            ]
            shares = [math.exp(score) / sum(map(math.exp, scores)) for score in scores]
            np.testing.assert_allclose(steps["probabilities"][head, row], [*shares, 0.0])
            mixed = [sum(shares[k] * value[k, 2 * head + i] for k in range(2)) for i in range(2)]
            np.testing.assert_allclose(steps["concat"][row, 2 * head :][:2], mixed)
    assert steps["concat"].dtype == np.float64 and steps.facts == {}
    assert {*steps} == {"probabilities", "heads", "concat"} and len(steps) == 3


async def test_a_layer_comes_step_by_step(
    call: Any, address: str, client: httpx.AsyncClient
) -> None:
    """As float32, the bits of the JSON; with the weights that made them, where asked for."""
    body = {"text": "All is well", "layer": 2, "weights": True, "pair": "It is"}
    expected = (await client.post("/v1/explain", json=body)).json()

    steps = await call(address, "explain", "All is well", 2, weights=True, pair="It is")

    assert steps.facts["tokens"] == expected["tokens"] and steps.facts["layer"] == 2
    for name in expected["shapes"]:
        np.testing.assert_array_equal(steps[name], np.float32(expected[name]), strict=True)
    q = steps["x"] @ steps["q.weight"][3] + steps["q.bias"][3]
    np.testing.assert_allclose(q, steps["q"][3], atol=1e-5)
    assert steps["eps"] == np.float32(1e-12)
    assert repr(steps).startswith("Steps(arrays={'x': float32(8, 384), 'q': float32(12, 8, 32), ")
    assert len(repr(steps)) < 400


async def test_refusals_and_unknown_options_raise(call: Any, address: str) -> None:
    """An option that would be ignored is not sent."""
    with pytest.raises(RequestRefused, match="index_out_of_range: layer"):
        await call(address, "explain", "All is well", 6)
    for method, given in (("explain", ("a",)), ("attend", ())):
        with pytest.raises(TypeError, match="unknown option: color"):
            await call(address, method, *given, color=1)


@pytest.mark.parametrize("answer", [None, [], {"shapes": {"x": [1]}}, {"concat": "a"}], ids=str)
async def test_what_is_no_answer_of_ours_is_said_to_be_none(answer: Any) -> None:
    """A proxy's page, or another version's."""
    with pytest.raises(NoAnswer):
        read_steps(answer)
