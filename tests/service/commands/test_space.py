"""headlight space: shown, saved, and checked against an earlier day."""

import asyncio
import json
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner, Result

from headlight_client import AsyncClient, Space
from headlight_client.spaces import CANARY_TEXTS, compare_vectors
from service.cli import main
from service.pipeline.replica import Replica


async def run(*words: object) -> Result:
    """The command's end, while the service answers on this loop."""
    given = ["space", *map(str, words)]
    return await asyncio.to_thread(CliRunner().invoke, main, given)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Where a space is saved."""
    return tmp_path / "space.json"


async def test_a_space_is_shown_with_all_that_decides_it(
    address: str, client: httpx.AsyncClient
) -> None:
    """For people and for programs."""
    info = (await client.get("/info")).json()

    shown, told = await run(address), await run(address, "--json")

    assert info["space"] in shown.output and "'mean'" in shown.output
    assert json.loads(told.output)["space_parts"] == info["space_parts"]


async def test_a_service_that_did_not_change_gives_the_same_bits(address: str, saved: Path) -> None:
    """Of 32 canaries, and the exit status is 0; a space that was saved is not overwritten."""
    first, again = await run(address, "--save", saved), await run(address, "--save", saved)

    checked = await run(address, "--check", saved)

    assert first.exit_code == 0 and "s1-" in first.output
    assert again.exit_code == 2 and "already exists" in again.output
    assert (checked.exit_code, checked.output) == (0, "32 vectors: the same bits\n")


async def test_vectors_within_the_bound_are_the_same(address: str, saved: Path) -> None:
    """As another processor leaves them."""
    await run(address, "--save", saved)
    space = Space.read(saved)
    Space(space.facts, space.texts, space.vectors * np.float32(1 + 1e-5)).write(saved)

    checked = await run(address, "--check", saved)

    assert checked.exit_code == 0 and "the same, within 1." in checked.output


async def test_a_text_that_moved_is_named_with_its_distance(address: str, saved: Path) -> None:
    """And the exit status is 1."""
    await run(address, "--save", saved)
    space = Space.read(saved)
    vectors = space.vectors.copy()
    vectors[3] *= -1
    Space(space.facts, space.texts, vectors).write(saved)

    checked, told = (
        await run(address, "--check", saved),
        await run(address, "--check", saved, "--json"),
    )

    assert checked.exit_code == told.exit_code == 1
    assert (
        "1 of 32 vectors moved" in checked.output and f"2.0000  {CANARY_TEXTS[3]}" in checked.output
    )
    answer = json.loads(told.output)
    assert answer["verdict"] == "moved" and answer["moved"] == [
        {"text": CANARY_TEXTS[3], "distance": pytest.approx(2, abs=1e-3)}
    ]


async def test_a_part_that_changed_is_named_though_no_canary_moved(
    address: str, saved: Path
) -> None:
    """A shorter longest sequence shows in long texts alone."""
    await run(address, "--save", saved)
    space = Space.read(saved)
    parts = space.facts["space_parts"] | {"max_tokens": 128}
    Space({**space.facts, "space_parts": parts}, space.texts, space.vectors).write(saved)

    checked = await run(address, "--check", saved)

    assert (
        checked.exit_code == 1 and "max_tokens: 128 was saved, and it is 256 now" in checked.output
    )


@pytest.fixture(params=["{}", "[]", "no JSON", '{"headlight_space": 2}'])
def wrong(request: pytest.FixtureRequest, saved: Path) -> Path:
    """A file that is no saved space."""
    saved.write_text(request.param)
    return saved


async def test_a_file_that_is_no_saved_space_is_refused(address: str, wrong: Path) -> None:
    """By its name."""
    ended = await run(address, "--check", wrong)

    assert ended.exit_code == 2 and "space.json is not a saved space" in ended.output


async def test_the_client_does_the_same_in_one_call(address: str, replica: Replica) -> None:
    """Without a file."""
    async with AsyncClient(address) as client:
        space = await client.space()
        checked = await client.check_space(space)

    assert space.vectors.shape == (32, 384) and len(set(space.texts)) == 32
    assert checked.verdict == "same bits"
    assert checked.same and not checked.moved and not checked.changed


async def test_vectors_that_are_not_finite_have_moved() -> None:
    """Though no comparison with NaN is true."""
    nothing = np.full((1, 3), np.nan)

    assert compare_vectors(["a"], np.ones((1, 3)), nothing, 1e-4).verdict == "moved"
