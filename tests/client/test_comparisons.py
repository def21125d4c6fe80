"""What heads are worth, and why texts are alike, asked by both clients over real HTTP."""

from typing import Any

import httpx
import numpy as np
import pytest

from headlight_client import RequestRefused

DOG, CAT = "A dog ate it", "A cat saw me"
TEXTS = [f"a text of number {i}" for i in range(13)]


async def test_a_comparison_comes_typed(call: Any, client: httpx.AsyncClient, address: str) -> None:
    """The numbers of the JSON, as arrays; what another form has is None."""
    sweep = {"heads": {"5": [11], "0": [3]}}
    body = {"left": DOG, "right": [CAT, DOG]}

    full = await call(
        address, "similarity", DOG, [CAT, {"text": DOG}], sweep=sweep, sweep_pair=[1, 2]
    )
    top = await call(address, "similarity", DOG, [CAT], form="top", k=3)

    swept = {"sweep": sweep, "sweep_pair": [1, 2]}
    told = (await client.post("/v1/similarity", json={**body, **swept})).json()
    for one, expected in zip(full.right, told["right"], strict=True):
        assert one.score == expected["score"] and one.pairs is None
        assert one.matrix is not None and one.left_share is not None
        np.testing.assert_allclose(one.matrix, expected["matrix"], atol=1e-7)
        np.testing.assert_allclose(one.left_share, expected["left_share"], atol=1e-7)
        changes = expected["sweep"]["change"]
        assert one.change == {(0, 3): changes["0"]["3"], (5, 11): changes["5"]["11"]}
        shares = expected["sweep"]["share"]
        assert one.share == {(0, 3): shares["0"]["3"], (5, 11): shares["5"]["11"]}
    assert full.left["tokens"] == told["left"]["tokens"] == full.right[1].facts["tokens"]
    assert full.origin == {name: told[name] for name in ("model", "weights", "numerics")}
    pairs = top.right[0].pairs
    assert pairs is not None and pairs.shares.shape == pairs.left.shape == (3,)
    assert top.right[0].matrix is None and top.right[0].change == {}


async def test_worth_comes_typed(call: Any, client: httpx.AsyncClient, address: str) -> None:
    """Of each word of both texts; there are no shares."""
    body = {"left": DOG, "right": [CAT], "form": "occlusion", "level": "word"}

    (one,) = (await call(address, "similarity", DOG, [CAT], form="occlusion", level="word")).right

    (expected,) = (await client.post("/v1/similarity", json=body)).json()["right"]
    assert one.left_share is None and one.facts["method"] == "occlusion"
    assert one.left_worth is not None and one.right_worth is not None
    np.testing.assert_allclose(one.left_worth, expected["left_worth"], atol=1e-7)
    np.testing.assert_allclose(one.right_worth, expected["right_worth"], atol=1e-7)


async def test_shares_of_heads_come_typed(
    call: Any, client: httpx.AsyncClient, address: str
) -> None:
    """Of each layer and head of both texts, and how worth orders them."""
    body = {"left": DOG, "right": [CAT], "by": "head"}

    (one,) = (await call(address, "similarity", DOG, [CAT], by="head")).right

    (expected,) = (await client.post("/v1/similarity", json=body)).json()["right"]
    for name in ("left_heads", "right_heads", "left_rest", "right_rest", "worth"):
        np.testing.assert_allclose(getattr(one, name), expected[name], atol=1e-6)
    assert one.worth.shape == (6, 12) and one.matrix is None


async def test_a_comparison_too_large_as_a_whole_is_sent_in_halves(
    call: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined in order; a fault keeps the caller's count."""
    monkeypatch.setattr("service.pipeline.edit.sweep.MOST_COPIES", 4 * 72)  # of four texts
    sweep = {"heads": "all"}
    texts = [f"{i}" for i in range(5)]

    whole = await call(address, "similarity", DOG, texts, form="score", sweep=sweep)

    one = await call(address, "similarity", DOG, texts[3:4], form="score", sweep=sweep)
    assert len(whole.right) == 5 and whole.right[3] == one.right[0]
    with pytest.raises(RequestRefused) as refused:
        await call(address, "similarity", DOG, [*texts, ""], form="score", sweep=sweep)
    assert refused.value.errors[0].loc == ("right", 5, "text")
    assert refused.value.detail.startswith("right[5].text: ")


async def test_an_option_of_another_call_is_refused(call: Any, address: str) -> None:
    """Before anything is sent, and so is a lone text."""
    with pytest.raises(TypeError, match="unknown option: tokens"):
        await call(address, "similarity", DOG, [CAT], tokens=True)
    with pytest.raises(TypeError, match="must be a list"):
        await call(address, "similarity", DOG, CAT)


async def test_an_encoding_has_its_sweep_and_its_patches(
    encode: Any, client: httpx.AsyncClient, address: str
) -> None:
    """By head; an input's own gates and patches go as they are."""
    patched = {"text": DOG, "patch": [{"layer": 2, "head": 3, "from": 0}]}
    sweep = {"layers": [5], "heads": [11, 2]}

    told = await encode(address, [CAT, patched], sweep=sweep)

    body = {"inputs": [CAT, patched], "sweep": sweep}
    expected = (await client.post("/v1/encode", json=body)).json()["data"]
    for item, one in zip(told.items, expected, strict=True):
        cosines = one["sweep"]["cosine"]["5"]
        assert item.cosine == {(5, 2): cosines["2"], (5, 11): cosines["11"]} and not item.logits


async def test_patches_are_never_sent_apart_from_their_sources(
    encode: Any, failing: Any, listen: Any
) -> None:
    """Their numbers name inputs of one request."""
    patched = {"text": DOG, "patch": [{"layer": 2, "head": 3, "from": 0}]}
    little = {"max_sequences": 5}

    async with listen(failing(limits=little)) as url:
        for inputs in ([DOG, patched, *TEXTS], [*TEXTS, patched], [DOG] * 5 + [patched]):
            with pytest.raises(ValueError, match="inputs with patches must fit into one request"):
                await encode(url, inputs)
    async with listen(failing()) as url:
        with pytest.raises(ValueError, match="inputs with patches must fit into one request"):
            await encode(url, [*["well " * 240] * 2, patched], sweep="heads")
        with pytest.raises(RequestRefused, match="attention_too_large"):  # halves are not tried
            long = "well " * 240
            await encode(url, [*[long] * 15, {**patched, "text": long}], attention={})
