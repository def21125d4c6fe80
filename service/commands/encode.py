"""One text for people: what `headlight encode` prints, and the example of `headlight serve`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headlight_client import pictures
from headlight_client.formats import Array
from service.commands.bulk.jobs import connect
from service.commands.terminal import Unusable, drawing, strip_control

# Of the request that `headlight serve --example` sends
EXAMPLE_BODY = {"inputs": ["All is well"], "attention": {"layers": [0], "heads": [5]}}
PATIENCE_SECONDS = 60.0  # for an answer, tries included
SHADES = "\u00b7\u2591\u2592\u2593\u2588"  # from a share of 0 to a share of 1
MOST_SHADES = 40  # rows and columns of a map that a terminal holds
SHOWN_NUMBERS = 3  # of a vector, before the dots


def show_example(url: str) -> str:
    """Send EXAMPLE_BODY and return it as a curl command, then the answer, long lists shortened.

    Raises:
        Failed: no answer came.
    """
    with connect(url, None, PATIENCE_SECONDS) as (client, _):
        answer = client.ask("/v1/encode", EXAMPLE_BODY)
    body = json.dumps(EXAMPLE_BODY)
    command = f"curl {url}/v1/encode -H 'Content-Type: application/json' \\\n  -d '{body}'"
    return f"{command}\n{json.dumps(_shorten(answer))}"


def parse_head(name: str, option: str) -> tuple[int, int]:
    """Parse a head's name such as L5H11, an option's value, into layer and head from 0.

    Raises:
        Unusable: it is not such a name.
    """
    match = re.fullmatch(r"[Ll](\d+)[Hh](\d+)", name)
    if not match:
        raise Unusable(f"{option} must be a layer and a head such as L5H11, got {name!r}")
    return int(match[1]), int(match[2])


def draw_tokens(url: str, key: str | None, text: str, name: str | None, plot: Path | None) -> Group:
    """Return a table of a text's tokens and their vectors; with a head, its attention map too.

    Args:
        name: the head, such as L5H11.
        plot: where to draw its map, .png or .svg.

    Raises:
        Unusable, Failed: why not, in a line.
    """
    if plot:
        with drawing():
            pictures.check_picture(plot, "--plot")
    options: dict[str, Any] = {}
    if name:
        layer, head = parse_head(name, "--attention")
        options["attention"] = {"heads": {str(layer): [head]}}
    with connect(url, key, PATIENCE_SECONDS) as (client, _):
        # refused if too long: the table would not show that it was cut
        encoded = client.encode([text], tokens=True, truncate="refuse", **options)
    (item,) = encoded.items
    if encoded.pooled is None or item.token_vectors is None:
        raise RuntimeError("an answer without vectors: this is a bug")
    (pooled,), tokens = encoded.pooled, [token or "" for token in item.tokens or ()]
    head_map = item.attention.maps[layer, head] if item.attention else None
    if plot and head_map is not None:
        title = f"{name} of {encoded.model}: what each row's token attends to"
        with drawing():
            item.plot(layer, head, title).save(plot)
    title = f"{encoded.model}: {len(pooled)} numbers {_write_numbers(pooled)}"
    grid = Table(title=strip_control(title), title_justify="left", caption=encoded.numerics)
    grid.add_column("token")
    for column in [*([] if head_map is None else ["attends most to", "with"]), "vector"]:
        grid.add_column(column, justify="right" if column == "with" else "left")
    for index, token in enumerate(tokens):
        strongest = list[str]()
        if head_map is not None:
            best = int(head_map[index].argmax())
            strongest = [tokens[best], f"{head_map[index, best]:.3f}"]
        grid.add_row(
            *map(strip_control, (token, *strongest, _write_numbers(item.token_vectors[index])))
        )
    return Group(
        grid, *([draw_shades(name, tokens, head_map)] if name and head_map is not None else [])
    )


def draw_shades(name: str, tokens: Sequence[str], head_map: Array) -> Group:
    """Return a head's map, (query, key), in shades: a row for each query, a column for each key."""
    grid = Table.grid()
    for token, row in list(zip(tokens, head_map.tolist(), strict=True))[:MOST_SHADES]:
        # by its square root small shares differ too
        shades = (round(share**0.5 * (len(SHADES) - 1)) for share in row[:MOST_SHADES])
        shown = "".join(SHADES[min(len(SHADES) - 1, shade)] * 2 for shade in shades)
        grid.add_row(strip_control(f"{token} "), Text(shown, style="cyan"))
    return Group(f"{name.upper()}: each token looks along its row at every token in turn", grid)


def _write_numbers(vector: Array) -> str:
    """Write the first numbers of a vector."""
    return f"{', '.join(f'{x:.4f}' for x in vector[:SHOWN_NUMBERS])}, ..."


def _shorten(value: Any) -> Any:
    """Cut long lists of numbers in JSON to their first few, and round numbers to four places."""
    if isinstance(value, dict):
        return {key: _shorten(part) for key, part in value.items()}
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list):
        numbers = len(value) > 8 and isinstance(value[0], float)
        return [_shorten(part) for part in value[: SHOWN_NUMBERS if numbers else None]] + (
            ["..."] if numbers else []
        )
    return value
