"""Encode as Ray Data calls it: batch by batch, against the real replica."""

import asyncio
import pickle
import random
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headlight_client import AsyncClient, ModelChanged, RequestRefused, data
from headlight_client.data import Encode
from service.tables.refusals import Refused

TEXTS = [f"{'well ' * (i % 7)}text number {i}" for i in range(23)]
LITTLE = {"max_sequences": 5}  # so that a batch takes several requests


async def encoded(url: str, *batches: Any, **options: Any) -> list[Any]:
    """What one Encode makes of batches, in turn."""

    def run() -> list[Any]:
        encode = Encode(url, "text", **options)
        return [encode(batch) for batch in batches]

    return await asyncio.to_thread(run)


async def test_each_row_gets_the_vector_of_its_text_and_keeps_the_rest(
    failing: Any, listen: Any, alone: Any
) -> None:
    """In any order of rows, over several requests, after a service that was busy."""
    order = random.Random(7).sample(range(23), 23)
    batch = pa.table(
        {
            "id": pa.array([None if i == 3 else 2**62 + i for i in order], pa.int64()),
            "text": [TEXTS[i] for i in order],
            "tags": [[str(i), None] for i in order],
        }
    )
    layer = failing((429, {}), limits=LITTLE)

    async with listen(layer) as url:
        (told,) = await encoded(url, batch)

    assert told.drop_columns("pooled").equals(batch)
    assert told.schema.field("pooled").type == pa.list_(pa.float32(), 384)
    for i, row in zip(order, told["pooled"], strict=True):
        np.testing.assert_array_equal(row.values.to_numpy(), await alone(TEXTS[i]), strict=True)
    assert len(layer.bodies) == 6  # five requests, and the first again


@pytest.mark.parametrize("kind", [object, str], ids=["objects", "strings"])
async def test_ray_datas_own_batches_get_the_same_vectors(
    failing: Any, listen: Any, alone: Any, kind: type
) -> None:
    """Arrays by their columns, which a job without a batch_format has; an empty one too."""
    ids, texts = np.arange(23), np.array(TEXTS, kind)
    batch = {"id": ids, "text": texts}
    empty = {name: values[:0] for name, values in batch.items()}

    async with listen(failing(limits=LITTLE)) as url:
        told, none = await encoded(url, batch, empty)

    assert [*told] == ["id", "text", "pooled"] and told["id"] is ids and told["text"] is texts
    assert (told["pooled"].shape, none["pooled"].shape) == ((23, 384), (0, 384))
    for text, row in zip(TEXTS, told["pooled"], strict=True):
        np.testing.assert_array_equal(row, await alone(text), strict=True)


@pytest.mark.parametrize("bad", ["", "well " * 400, None, float("nan")])
async def test_a_row_of_ray_datas_own_batches_is_named_too(
    failing: Any, listen: Any, bad: Any
) -> None:
    """Whether the service refuses its text or there is none."""
    texts = np.array([*TEXTS[:17], bad], object)
    batch = {"id": np.arange(18), "tags": np.eye(18), "text": texts}

    async with listen(failing(limits=LITTLE)) as url:
        with pytest.raises((RequestRefused, ValueError), match="id=17, tags=.*, text="):
            await encoded(url, batch)


async def test_a_busy_service_ends_the_job_with_how_long_it_was_busy(
    failing: Any, listen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests carry no deadline, which nobody gave."""
    monkeypatch.setattr(data, "PATIENCE_SECONDS", 0.5)
    layer = failing(*[Refused("overloaded")] * 99)

    async with listen(layer) as url:
        with pytest.raises(RequestRefused, match=r"^429 overloaded: busy for 0\.\d s, in "):
            await encoded(url, {"text": np.array(["a dog"])})

    assert not any("x-headlight-deadline-ms" in headers for headers in layer.headers)


async def test_an_empty_batch_gets_a_column_of_the_same_type(address: str) -> None:
    """So that it can be joined with the others, whichever comes first."""
    batch, how = pa.table({"id": [7], "text": ["a dog"]}), {"dimensions": 128, "precision": "int8"}

    empty, full = await encoded(address, batch.slice(1), batch, pooled=how)

    assert (empty.num_rows, full.num_rows) == (0, 1) and empty.schema == full.schema
    assert pa.concat_tables([empty, full]).equals(full)


async def test_options_are_those_of_encode(address: str, alone: Any) -> None:
    """Such as where texts are cut, how vectors are written, and what the column is called."""
    batch = pa.table({"text": pa.array(["well " * 400, "a dog"], pa.large_string())})

    (told,) = await encoded(
        address, batch, into="v", truncate="left", pooled={"dimensions": 128, "precision": "int8"}
    )

    assert told.schema.field("v").type == pa.list_(pa.int8(), 128)
    how = {"truncate": "left", "pooled": {"dimensions": 128}}
    expected = await alone("well " * 400, **how)
    assert np.corrcoef(told["v"][0].values.to_numpy(), expected)[0, 1] > 0.99


@pytest.mark.parametrize("bad", ["", "well " * 400], ids=["empty", "too long"])
async def test_a_refused_text_is_named_by_the_content_of_its_row(
    failing: Any, listen: Any, bad: str
) -> None:
    """Whichever request it came in: Ray Data keeps no order by which it could be found."""
    texts = [*TEXTS[:17], bad, *TEXTS[17:]]
    batch = pa.table({"id": [f"doc-{i}" for i in range(24)], "text": texts})

    async with listen(failing(limits=LITTLE)) as url:
        with pytest.raises(RequestRefused) as raised:
            await encoded(url, batch)

    again = pickle.loads(pickle.dumps(raised.value))  # as Ray takes it to the driver
    assert "id='doc-17', text='" in str(again) and again.errors[0].loc[1] == 17
    assert len(str(again)) < 400


async def test_a_row_without_a_text_is_named_too(address: str) -> None:
    """Before anything is sent."""
    batch = pa.table({"id": [1, 2], "text": ["a", None]})

    with pytest.raises(ValueError, match="no text in the row id=2, text=None"):
        await encoded(address, batch)


async def test_vectors_of_another_space_than_the_first_end_the_job(
    served: Any, listen: Any, failing: Any
) -> None:
    """Though their weights are the same: within a batch, and from one to the next."""
    layer, other = failing(limits=LITTLE), served(truncate="left").app
    ours, most = layer.app, [99]

    async def changing(scope: Any, receive: Any, send: Any) -> None:
        app = ours if len(layer.bodies) <= most[0] else other
        await app(scope, receive, send)

    layer.app = changing
    batch = pa.table({"text": TEXTS})

    async with listen(layer) as url:
        encode = Encode(url, "text")
        await asyncio.to_thread(encode, batch)
        most[0] = 0
        with pytest.raises(RequestRefused, match="409 space_changed: .* space"):
            await asyncio.to_thread(encode, batch)
        most[0] = len(layer.bodies) + 2
        with pytest.raises(ModelChanged, match=r"the space changed from s1-\w+ to s1-"):
            await asyncio.to_thread(Encode(url, "text"), batch)


async def test_a_space_that_is_given_is_expected_of_the_first_answer_too(address: str) -> None:
    """So all workers of a job agree; it is the space of the same options."""
    batch, options = pa.table({"text": ["a dog"]}), {"pooled": {"dimensions": 128}}
    async with AsyncClient(address) as client:
        space = (await client.encode(["a"], **options)).space

    (told,) = await encoded(address, batch, space=space, **options)
    with pytest.raises(RequestRefused, match="409 space_changed"):
        await encoded(address, batch, space=space)

    assert told.num_rows == 1


@pytest.mark.parametrize(
    ("batch", "error", "line"),
    [
        (["a"], TypeError, 'pass batch_format="pyarrow"'),
        ({"body": np.array(["a"])}, ValueError, "0 columns have the name 'text'"),
        ({"text": np.array([1])}, ValueError, "no text in the row text=1"),
        ({"text": np.array(["a"]), "pooled": np.eye(1)}, ValueError, "a column 'pooled' already"),
        (pa.table({"body": ["a"]}), ValueError, "0 columns have the name 'text'"),
        (pa.table({"text": [1]}), ValueError, "'text' is of int64, not of text"),
        (pa.table({"text": ["a"], "pooled": [1]}), ValueError, "a column 'pooled' already"),
    ],
    ids=["a list", *("no array", "an array of numbers", "a taken name")]
    + ["no column", "numbers", "taken"],
)
async def test_a_batch_that_cannot_be_encoded_is_refused_before_anything_is_sent(
    failing: Any, listen: Any, batch: Any, error: type[Exception], line: str
) -> None:
    """Of either kind, or of none that Ray Data has."""
    layer = failing()

    async with listen(layer) as url:
        with pytest.raises(error, match=line):
            await encoded(url, batch)

    assert layer.bodies == []


async def test_without_pyarrow_the_import_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the client needs none."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "headlight_client.data")

    with pytest.raises(ImportError, match=r"pyarrow is missing \(the extra data of"):
        import headlight_client.data  # noqa: F401
