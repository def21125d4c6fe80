"""model/maps/maps.py: every map of every head, exactly the one that the fused pass used."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Many

import pytest
import torch
from torch import Tensor

from model.encoder import Encoded
from model.loading.checkpoint import Model
from model.maps import maps, tiles
from model.maps.tiles import MapReader
from model.packing import Sequence, pack_sequences

CPU = torch.device("cpu")
LAYERS = frozenset(range(6))
HEADS = range(12)
CLOSE = 1e-5  # largest difference from transformers, absolute

Ids = list[list[int]]
Reference = Callable[[list[int]], tuple[list[Tensor], Tensor]]


def trace(model: Model, batch: Ids) -> Encoded:
    """A forward pass that keeps what the maps are made of."""
    return model.encoder(pack_sequences([Sequence(ids) for ids in batch], CPU), traces=LAYERS)


def seen(encoded: Encoded, layer: int, index: int, heads: Many[int]) -> Tensor:
    """The maps of some heads of one layer, (heads, query, key)."""
    return maps.full_maps(MapReader(encoded.traces[layer], encoded.packed.rows(index), heads))


def every(encoded: Encoded, index: int) -> Tensor:
    """All maps of one sequence, (layers, heads, query, key)."""
    return torch.stack([seen(encoded, layer, index, HEADS) for layer in sorted(LAYERS)])


def test_alone_all_72_heads_have_the_maps_of_transformers(
    model: Model, sequences: Ids, reference: Reference
) -> None:
    """Recomputed from queries, keys and normalisers, they are what softmax gives."""
    for ids in sequences[2::8]:
        assert (every(trace(model, [ids]), 0) - reference(ids)[1]).abs().max() <= CLOSE


def test_in_any_batch_all_72_heads_have_the_maps_of_transformers(
    model: Model, sequences: Ids, reference: Reference
) -> None:
    """In one batch of texts of all lengths in random order, each finds its own."""
    batch = random.Random(11).sample(sequences[1::4], len(sequences[1::4]))
    encoded = trace(model, batch)

    for i, ids in enumerate(batch):
        assert (every(encoded, i) - reference(ids)[1]).abs().max() <= CLOSE


def test_the_plain_path_has_the_maps_of_transformers_too(
    plain: Model, sequences: Ids, reference: Reference
) -> None:
    """Its normaliser is as exact as the fused one."""
    batch = sequences[1::8]
    encoded = trace(plain, batch)

    for i, ids in enumerate(batch):
        assert (every(encoded, i) - reference(ids)[1]).abs().max() <= CLOSE


@pytest.mark.parametrize(
    ("text", "layer", "head", "query", "key", "share"),
    [
        ("All is well", 0, 5, "well", "all", 0.618),
        ("A dog ate the food because it was hungry", 5, 11, "it", "dog", 0.599),
    ],
    ids=["well-all", "it-dog"],
)
def test_the_textbook_examples_are_there_to_be_seen(
    model: Model, text: str, layer: int, head: int, query: str, key: str, share: float
) -> None:
    """One head takes 'well' mostly for 'all', another 'it' mostly for the dog."""
    tokens = model.tokenizer([(text,)], 512)[0]

    encoded = trace(model, [tokens.token_ids])

    (shown,) = seen(encoded, layer, 0, [head])

    found = shown[tokens.tokens.index(query), tokens.tokens.index(key)].item()
    assert found == pytest.approx(share, abs=0.01)


def test_every_row_is_a_share_out_of_one(model: Model, sequences: Ids) -> None:
    """What a query gives to all keys adds up to 1, and nothing is negative."""
    shown = every(trace(model, sequences[48:51]), 0)

    assert (shown.sum(-1) - 1).abs().max() <= 1e-5
    assert shown.min() >= 0


def test_a_map_mixes_the_values_to_what_the_layer_gave(model: Model, sequences: Ids) -> None:
    """Concat(P_i V_i) W_O is what the fused attention added: it used this map and no other."""
    ids, layer = sequences[8], model.encoder.layers[3].attention
    packed = pack_sequences([Sequence(ids)], CPU)
    x = model.encoder(packed, hidden=frozenset({3})).hidden[3]
    given, left = layer(x, x, packed, [None] * len(packed.groups))
    rows = packed.rows(0)

    values = layer.project(x)[rows].chunk(3, -1)[2].unflatten(-1, (12, 32)).transpose(0, 1)
    look = MapReader(left, rows, HEADS)
    z = maps.full_maps(look) @ values

    total = layer.output(z.transpose(0, 1).flatten(1)) + x[rows]
    torch.testing.assert_close(total, given[rows], rtol=0, atol=1e-5)


def test_heads_come_in_the_order_asked(model: Model, sequences: Ids) -> None:
    """Only those asked for, as often as asked for."""
    encoded = trace(model, sequences[:3])
    full = seen(encoded, 2, 1, HEADS)

    asked = seen(encoded, 2, 1, (11, 0, 7, 0))

    assert torch.equal(asked, full[[11, 0, 7, 0]])


@pytest.mark.parametrize("tile", [1, 7, 128, 131])
def test_the_tiles_of_a_long_map_fit_together(
    monkeypatch: pytest.MonkeyPatch, model: Model, sequences: Ids, tile: int
) -> None:
    """Made in pieces or at once, a map is the same."""
    ids = sequences[50]
    encoded = trace(model, [ids])
    monkeypatch.setattr(tiles, "TILE_QUERIES", len(ids))
    at_once = seen(encoded, 4, 0, [3, 5])

    monkeypatch.setattr(tiles, "TILE_QUERIES", tile)
    in_tiles = seen(encoded, 4, 0, [3, 5])

    torch.testing.assert_close(in_tiles, at_once, rtol=0, atol=1e-5)


def test_a_map_has_the_same_bits_alone_and_in_a_batch(model: Model, sequences: Ids) -> None:
    """A map is an answer too: what else is in the batch moves none of its bits."""
    batch = random.Random(13).sample(sequences[1::4], len(sequences[1::4]))
    encoded = trace(model, batch)

    for i, ids in enumerate(batch):
        assert torch.equal(every(encoded, i), every(trace(model, [ids]), 0))
