"""An answer for people: the table of `headlight encode`, the example of `headlight serve`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headlight_client.call import authorization
from service.commands.pictures import heatmap
from service.commands.pictures.formats import check
from service.commands.plain import plain

EXAMPLE = {"inputs": ["All is well"], "attention": {"layers": [0], "heads": [5]}}
TIMEOUT_SECONDS = 60.0
SHADES = "\u00b7\u2591\u2592\u2593\u2588"
MOST_SHADES = 40  # rows and columns of a map that a terminal holds
SHOWN_NUMBERS = 3  # of a vector, before the dots


class Unreachable(Exception):
    """The service did not answer; the message is one line."""


def ask(url: str, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    """Send one request to POST /v1/encode, with an API key if there is one.

    Raises:
        Unreachable: there is no service, or it refused; the message says why.
    """
    address, headers = f"{url.rstrip('/')}/v1/encode", authorization(key)
    try:
        response = httpx.post(address, json=body, headers=headers, timeout=TIMEOUT_SECONDS)
        answer: dict[str, Any] = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unreachable(f"no answer from {url}: {error}") from error
    if response.status_code != 200:
        raise Unreachable(f"{url} answered {response.status_code}: {answer.get('detail')}")
    return answer


def example(url: str) -> str:
    """One real request as a curl command, and its real answer, vectors and rows shortened."""
    answer = ask(url, EXAMPLE)
    command = (
        f"curl {url}/v1/encode -H 'Content-Type: application/json' \\\n  -d '{json.dumps(EXAMPLE)}'"
    )
    return f"{command}\n{json.dumps(_shortened(answer))}"


def head(name: str) -> tuple[int, int]:
    """Layer and head of a name such as L5H11, both counted from 0.

    Raises:
        ValueError: it is no such name.
    """
    match = re.fullmatch(r"[Ll](\d+)[Hh](\d+)", name)
    if not match:
        raise ValueError(f"{name!r} is not a head; head 11 of layer 5 is L5H11")
    return int(match[1]), int(match[2])


def table(
    url: str, text: str, name: str | None, key: str | None = None, plot: Path | None = None
) -> Group:
    """What the model makes of a text, a row for each token; with a head, its map too.

    Args:
        plot: where to draw the map, .png or .svg.

    Raises:
        ValueError, Unreachable: see `head` and `ask`.
        CannotDraw: see `check` and `draw`.
    """
    if plot:
        check(plot)
    body: dict[str, Any] = {"inputs": [text], "tokens": True}
    if name:
        layer, number = head(name)
        body["attention"] = {"heads": {str(layer): [number]}}
    answer = ask(url, body, key)
    item = answer["data"][0]
    title = f"{answer['model']}: {len(item['pooled'])} numbers {_numbers(item['pooled'])}"
    grid = Table(title=plain(title), title_justify="left", caption=answer["numerics"])
    grid.add_column("token")
    maps = item["attention"]["maps"][str(layer)][str(number)] if name else None
    if plot and maps:
        title = f"{name} of {answer['model']}: what each row's token attends to"
        heatmap.draw(title, item["tokens"], maps, plot)
    for column in [*(["attends most to", "with"] if maps else []), "vector"]:
        grid.add_column(column, justify="right" if column == "with" else "left")
    for index, token in enumerate(item["tokens"]):
        most = _strongest(maps[index], item["tokens"]) if maps else []
        grid.add_row(*map(plain, (token, *most, _numbers(item["token_vectors"][index]))))
    return Group(grid, *([heat(answer, name)] if name else []))


def heat(answer: Mapping[str, Any], name: str) -> Group:
    """One head's map as shades: a row for each query, a column for each key, in turn."""
    layer, number = head(name)
    item = answer["data"][0]
    maps = item["attention"]["maps"][str(layer)][str(number)]
    grid = Table.grid()
    for token, row in list(zip(item["tokens"], maps, strict=True))[:MOST_SHADES]:
        shades = "".join(_shade(share) * 2 for share in row[:MOST_SHADES])
        grid.add_row(plain(f"{token} "), Text(shades, style="cyan"))
    return Group(f"{name.upper()}: each token looks along its row at every token in turn", grid)


def _shade(share: float) -> str:
    """A letter as full as the root of the share, which tells small shares apart too."""
    return SHADES[min(len(SHADES) - 1, round(share**0.5 * (len(SHADES) - 1)))]


def _strongest(row: list[float], tokens: list[str]) -> list[str]:
    best = max(range(len(row)), key=row.__getitem__)
    return [tokens[best], f"{row[best]:.3f}"]


def _numbers(vector: list[float]) -> str:
    return f"{', '.join(f'{x:.4f}' for x in vector[:SHOWN_NUMBERS])}, ..."


def _shortened(value: Any) -> Any:
    """Long lists of numbers cut to their first few, all numbers to four places."""
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        numbers = len(value) > 8 and isinstance(value[0], float)
        return [_shortened(part) for part in value[: SHOWN_NUMBERS if numbers else None]] + (
            ["..."] if numbers else []
        )
    return value
