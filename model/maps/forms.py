"""The forms of an attention answer, and the tensors of each.

full, rows, top, blocks, mean and stats are computed for each head alone, all but stats also for the
mean of a layer's heads; mean also averages over all heads selected, dominance counts over them, and
rollout is one map of all of them. In an answer a unit is named by its index in the sequence, which
also counts special ones that are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.attention.attention import Trace
from model.maps import maps
from model.maps.choices import MEAN, Form, Weight
from model.maps.maps import count_wins, find_dominance, roll_out
from model.maps.statistics import measure_heads
from model.maps.tiles import MapReader
from model.maps.units import Units


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What to show of a sequence's attention.

    Args:
        heads: which heads, by layer, both counted from 0 and in order.
        weight: for top and dominance.
        rows: for the forms rows and why, the units whose rows to show.
        k: for top, how many keys a row.
        size: for blocks, the most blocks along a side.
        segments: for mean, the units of each segment; no two have one in common.
        averaged: whether to show the mean of the heads of each layer, in place of each.
        half: whether numbers are float16 instead of float32.
        cls: for stats, the first special token.
        separators: for stats, the tokens that separate.
    """

    heads: Mapping[int, tuple[int, ...]]
    units: Units
    form: Form = "full"
    weight: Weight = "probability"
    rows: tuple[int, ...] = ()
    k: int = 8
    size: int = 32
    half: bool = False
    cls: int | None = None
    separators: tuple[int, ...] = ()
    segments: tuple[tuple[int, ...], ...] = ()
    averaged: bool = False

    @property
    def names(self) -> Mapping[int, tuple[int | str, ...]]:
        """Return by layer what each of its maps is of: a head, or the mean over heads."""
        return dict.fromkeys(self.heads, (MEAN,)) if self.averaged else self.heads


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of one sequence's attention.

    Args:
        heads: tensors by layer and name; their first axis is the heads selected in the layer, of
            length 1 if they are averaged. map (full, rows, blocks, mean): (heads, query, key); keys
            (int32), values: (heads, query, k) and rest: (heads, query); stats: (heads,
            STATISTIC_FIELDS); dominant (int32), share and own: (heads, units).
        whole: tensors of all heads by name. wins: (units,) int32, counting all units; map (mean,
            rollout): (query, key).
    """

    heads: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    whole: dict[str, Tensor] = field(default_factory=dict)


def show(traces: Mapping[int, Trace], rows: slice, selection: Selection) -> Shown:
    """Return the attention of one sequence in the form that the selection names.

    Args:
        traces: of every layer of `selection.heads`, at least.
        rows: the sequence's rows in its batch.
    """
    if selection.form == "rollout":
        layers = sorted(selection.heads.items())
        readers = [MapReader(traces[layer], rows, heads) for layer, heads in layers]
        return Shown(whole=_to_half({"map": roll_out(readers, selection.units)}, selection))
    if selection.form == "stats":
        return Shown(_show_statistics(traces, rows, selection))
    if selection.form == "mean":
        return _show_segments(traces, rows, selection)
    heads = {
        layer: _to_half(_show_layer(traces[layer], rows, of_layer, selection), selection)
        for layer, of_layer in selection.heads.items()
    }
    whole = {}
    if selection.form == "dominance":
        dominant = torch.cat([tensors["dominant"] for tensors in heads.values()])
        axis = torch.tensor(selection.units.axis, device=dominant.device)
        whole["wins"] = count_wins(dominant, axis, len(selection.units.spans))
    return Shown(heads, whole)


def _to_half(tensors: dict[str, Tensor], selection: Selection) -> dict[str, Tensor]:
    """Return tensors with their floats as float16 if the selection asks for it.

    This is not done in numpy, which takes many times as long for numbers near float16's smallest.
    """
    if not selection.half:
        return tensors
    return {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def _show_layer(
    trace: Trace, rows: slice, heads: tuple[int, ...], selection: Selection
) -> dict[str, Tensor]:
    """Return the tensors of one layer's heads, by name."""
    reader = _make_reader(trace, rows, heads, selection)
    axis = torch.tensor(selection.units.axis, dtype=torch.int32, device=reader.q.device)
    match selection.form:
        case "full":
            return {"map": maps.full_maps(reader)}
        case "rows":
            tiles = reader.read_tiles(selection.units.places(selection.rows))
            return {"map": torch.cat([tile.values for tile in tiles], 1)}
        case "blocks":
            return {"map": maps.map_blocks(reader, selection.size)}
        case "top":
            keys, values, rest = maps.strongest_keys(reader, selection.k)
            return {"keys": axis[keys.long()], "values": values, "rest": rest}
        case "dominance":
            dominant, share, own = find_dominance(reader)
            return {"dominant": axis[dominant.long()], "share": share, "own": own}
        case "mean" | "stats" | "rollout" | "why":
            raise RuntimeError("not made of one layer's maps: this is a bug")


def _make_reader(
    trace: Trace, rows: slice, heads: tuple[int, ...], selection: Selection
) -> MapReader:
    """Return what reads the maps that a selection shows of one layer."""
    return MapReader(
        trace, rows, heads, selection.units, selection.weight, averaged=selection.averaged
    )


def _show_segments(traces: Mapping[int, Trace], rows: slice, selection: Selection) -> Shown:
    """Return the mean over segments of each map, and of all of them."""
    places = [selection.units.places(segment) for segment in selection.segments]
    maps_of = {
        layer: maps.average_segments(_make_reader(traces[layer], rows, heads, selection), places)
        for layer, heads in selection.heads.items()
    }
    whole = torch.cat([*maps_of.values()]).mean(0)
    halved = {layer: _to_half({"map": of_layer}, selection) for layer, of_layer in maps_of.items()}
    return Shown(halved, _to_half({"map": whole}, selection))


def _show_statistics(
    traces: Mapping[int, Trace], rows: slice, selection: Selection
) -> dict[int, dict[str, Tensor]]:
    """Return the statistics of the selected heads, by layer and name."""
    place, heads = selection.units.place_of_token, list(selection.heads.values())
    cls = None if selection.cls is None else place(selection.cls)
    separators = [at for at in map(place, selection.separators) if at is not None]
    layers = [traces[layer] for layer in selection.heads]
    readers = [
        MapReader(trace, rows, of_layer, selection.units)
        for trace, of_layer in zip(layers, heads, strict=True)
    ]
    table = measure_heads(readers, layers, rows, cls, separators)
    parts = torch.split(table, [len(of_layer) for of_layer in heads])
    return {
        layer: _to_half({"stats": part}, selection)
        for layer, part in zip(selection.heads, parts, strict=True)
    }
