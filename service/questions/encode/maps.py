"""The arrays of attention in an answer: nested in JSON, and named in a safetensors file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from model.maps.choices import STATISTIC_FIELDS
from model.maps.forms import Selection
from model.probes.why import PARTS
from service.pipeline.find.selection import describe_units
from service.shapes.answer import Array, Each, Records

Made = Mapping[str, Any]  # arrays of the probe Maps, or of Why


def describe_maps(selection: Selection, path: str) -> dict[str, Any]:
    """Return the answer's fields about its maps: form, path, and what rows and columns are."""
    answer: dict[str, Any] = {"form": selection.form, "path": path}
    answer |= describe_units(selection.units)
    if selection.form in ("rows", "why"):
        answer["rows"] = selection.rows
    if selection.form == "stats":
        heads = {str(layer): numbers for layer, numbers in selection.heads.items()}
        answer["stats"] = {"fields": STATISTIC_FIELDS, "heads": heads}
    if selection.form == "mean":
        answer["segments"] = [[units[0], units[-1] + 1] for units in selection.segments]
    return answer


def to_json(
    selection: Selection, maps: Made, encoding: str, tokens: Sequence[str | None]
) -> dict[str, Any]:
    """Return the arrays as nested JSON: by layer, then head.

    Args:
        tokens: of the sequence, which name the parts of scores.
    """
    if selection.form == "rollout":
        return {"map": maps["whole"]["map"]}
    if selection.form == "why":
        return {"why": _explained_json(selection, maps, tokens)}
    by_head = {
        str(layer): {
            str(head): _head_json(selection, arrays, place, encoding)
            for place, head in enumerate(selection.names[layer])
        }
        for layer, arrays in maps["heads"].items()
    }
    match selection.form:
        case "mean":
            return {"maps": by_head, "map": maps["whole"]["map"]}
        case "top":
            return {"edges": by_head}
        case "stats":
            return {"stats": {"fields": STATISTIC_FIELDS, "values": by_head}}
        case "dominance":
            return {"dominance": by_head, "wins": maps["whole"]["wins"]}
        case _:
            return {"maps": by_head}


def _head_json(selection: Selection, arrays: Mapping[str, Array], place: int, encoding: str) -> Any:
    """Return the JSON of one head, the `place`-th of its layer's in the arrays."""
    of_head = {name: array[place] for name, array in arrays.items()}
    if selection.form == "dominance":
        columns = {"token": _axis(selection), **of_head}
        return Records(columns) if encoding == "json" else columns
    return of_head if selection.form == "top" else next(iter(of_head.values()))


def _explained_json(
    selection: Selection, maps: Made, tokens: Sequence[str | None]
) -> dict[str, dict[str, Any]]:
    """Return the parts of scores by layer, then head."""
    above = [*tokens, "bias"]  # the parts above layer 0
    return {
        str(layer): {
            str(head): {
                "parts": above if layer else PARTS,
                "share": arrays["share"][place],
                "shuffled": arrays["shuffled"][place],
                "deviation": float(arrays["deviation"][place]),
                "rows": Each(
                    {"row": row, "scores": scores}
                    for row, scores in zip(selection.rows, arrays["scores"][place], strict=True)
                ),
            }
            for place, head in enumerate(selection.heads[layer])
        }
        for layer, arrays in maps["heads"].items()
    }


def _axis(selection: Selection) -> Array:
    """Return the index of each row's and column's token or word, (shown,) int32."""
    return np.array(selection.units.axis, dtype=np.int32)


def named_tensors(selection: Selection, maps: Made) -> Iterator[tuple[str, Array]]:
    """Yield the arrays with their names in a safetensors answer."""
    form = selection.form
    kind = form if form in ("dominance", "why") else "attention"
    for layer, arrays in maps["heads"].items():
        if form == "stats":
            yield f"stats.{layer}", arrays["stats"]
            continue
        for place, head in enumerate(selection.names[layer]):
            for name, array in arrays.items():
                part = f".{name}" if form in ("top", "dominance", "why") else ""
                yield f"{kind}.{layer}.{head}{part}", np.asarray(array[place])
            if form == "dominance":
                yield f"{kind}.{layer}.{head}.tokens", _axis(selection)
    if form == "dominance":
        yield "dominance.wins", maps["whole"]["wins"]
    if form in ("mean", "rollout"):
        yield form, maps["whole"]["map"]


def count_tensors(selection: Selection) -> int:
    """Return how many arrays `named_tensors` yields."""
    layers, shown = len(selection.heads), sum(map(len, selection.names.values()))
    by_form = {"stats": layers, "mean": shown + 1, "dominance": 4 * shown + 1, "rollout": 1}
    return {**by_form, "top": 3 * shown, "why": 4 * shown}.get(selection.form, shown)
