"""An attention answer's arrays -> where they stand in JSON and in safetensors."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from model.maps.choices import FIELDS
from model.maps.forms import Asked
from service.encode.answer import Array, Records
from service.engine.lanes import Attended


def facts(asked: Asked, path: str) -> dict[str, Any]:
    """What the answer says of itself: the form, the path, what its rows and columns are."""
    units = asked.units
    said: dict[str, Any] = {"form": asked.form, "path": path}
    if len(units.axis) < len(units.spans):
        said["axis"] = units.axis
    if len(units.spans) < units.tokens:
        said["spans"] = units.spans
    if asked.form == "rows":
        said["rows"] = asked.rows
    if asked.form == "stats":
        said["stats"] = {"fields": FIELDS}
    return said


def tree(asked: Asked, shown: Attended, encoding: str) -> dict[str, Any]:
    """The arrays as JSON nests them: by layer, then head."""
    if asked.form == "rollout":
        return {"map": shown.whole["map"]}
    by_head = {
        str(layer): {
            str(head): _leaf(asked, named, place, encoding)
            for place, head in enumerate(asked.heads[layer])
        }
        for layer, named in shown.heads.items()
    }
    match asked.form:
        case "top":
            return {"edges": by_head}
        case "stats":
            return {"stats": {"fields": FIELDS, "values": by_head}}
        case "dominance":
            return {"dominance": by_head, "wins": shown.whole["wins"]}
        case _:
            return {"maps": by_head}


def _leaf(asked: Asked, named: Mapping[str, Array], place: int, encoding: str) -> Any:
    """What stands for one head."""
    of_head = {name: array[place] for name, array in named.items()}
    if asked.form == "dominance":
        columns = {"token": _axis(asked), **of_head}
        return Records(columns) if encoding == "json" else columns
    return of_head if asked.form == "top" else next(iter(of_head.values()))


def _axis(asked: Asked) -> Array:
    return np.array(asked.units.axis, dtype=np.int32)


def named(asked: Asked, shown: Attended) -> Iterator[tuple[str, Array]]:
    """The arrays by the names they have in a safetensors answer."""
    for layer, arrays in shown.heads.items():
        if asked.form == "stats":
            yield f"stats.{layer}", arrays["stats"]
            continue
        for place, head in enumerate(asked.heads[layer]):
            for name, array in arrays.items():
                yield _name(asked, layer, head, name), array[place]
            if asked.form == "dominance":
                yield _name(asked, layer, head, "tokens"), _axis(asked)
    if asked.form == "dominance":
        yield "dominance.wins", shown.whole["wins"]
    if asked.form == "rollout":
        yield "rollout", shown.whole["map"]


def _name(asked: Asked, layer: int, head: int, name: str) -> str:
    if asked.form == "dominance":
        return f"dominance.{layer}.{head}.{name}"
    return f"attention.{layer}.{head}" + (f".{name}" if asked.form == "top" else "")
