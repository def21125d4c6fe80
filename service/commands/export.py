"""All maps of a text for BertViz and CircuitsVis: as arrays, or as a page of BertViz's views.

.npz    attention (layers, 1, heads, query, key) float32: by layer, as transformers' attentions;
        tokens (tokens,); model, weights, numerics
.html   BertViz's head view and model view, drawn by that package

BertViz is not a dependency, since it brings transformers, IPython and boto3.
"""

import html
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headlight_client import Item
from headlight_client.formats import Array
from service.commands.bulk.jobs import connected
from service.commands.encode import PATIENCE_SECONDS
from service.commands.terminal import Unusable

ENDINGS = {"arrays": ".npz", "bertviz": ".html"}
MISSING = "bertviz is missing: pip install bertviz, or take --export arrays to where it is"
MOST_TOKENS = 64  # of a page: its model view draws a line for every number of every head
LESS = "\ue000"  # stands for < in a token until the page is made
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Attention of {model}</title>
<body style="font-family: sans-serif; color: black; background: white">
<p>{model} ({weights}, {numerics}), drawn by BertViz, which loads RequireJS, D3 and jQuery from
cdnjs.cloudflare.com.</p>
<h1>Head view</h1>
{head_view}
<h1>Model view</h1>
{model_view}
</html>
"""


def export(url: str, key: str | None, text: str, form: str, path: Path) -> None:
    """Ask for all maps of a text, and write them.

    Args:
        form: of ENDINGS.

    Raises:
        Unusable: the file's name, the text's length, or BertViz, which is not installed.
        Failed: there is no service, or it refused; the message says why.
    """
    if path.suffix != ENDINGS[form]:
        raise Unusable(f"{path}: --out must end in {ENDINGS[form]} for {form}")
    bertviz = _bertviz() if form == "bertviz" else None
    with connected(url, key, PATIENCE_SECONDS) as (client, _):
        encoded = client.encode([text], pooled=False, attention={})
    (item,) = encoded.items
    maps, tokens = stacked(item), [token or "" for token in item.tokens or ()]
    if bertviz:
        path.write_text(page(bertviz, encoded.origin, maps, tokens), "utf-8")
    else:
        arrays: dict[str, Any] = {"attention": maps, "tokens": tokens, **encoded.origin}
        np.savez(path, **arrays)


def stacked(item: Item) -> Array:
    """Stack all maps of a text, (layers, 1, heads, query, key)."""
    if item.attention is None:
        raise RuntimeError("an answer without attention: this is a bug")
    maps = item.attention.maps
    layers = 1 + max(layer for layer, _ in maps)
    return np.stack(list(maps.values())).reshape(layers, 1, -1, *next(iter(maps.values())).shape)


def page(bertviz: Any, origin: dict[str, str], maps: Array, tokens: Sequence[str]) -> str:
    """Draw both views as one page of HTML.

    BertViz writes tokens into a script as JSON, where </script> in a token would end it.

    Raises:
        Unusable: a browser would not draw as many tokens.
    """
    if len(tokens) > MOST_TOKENS:
        raise Unusable(f"a page holds {MOST_TOKENS} tokens; this text has {len(tokens)}")
    safe = [token.replace("<", LESS) for token in tokens]
    attention = torch.from_numpy(maps)
    views = {
        "head_view": bertviz.head_view(attention, safe, html_action="return"),
        "model_view": bertviz.model_view(
            attention, safe, display_mode="light", html_action="return"
        ),
    }
    escaped = json.dumps(LESS).strip('"')
    drawn = {name: view.data.replace(escaped, r"\u003c") for name, view in views.items()}
    return PAGE.format(**{name: html.escape(value) for name, value in origin.items()}, **drawn)


def _bertviz() -> Any:
    try:
        return import_module("bertviz")
    except ImportError as error:
        raise Unusable(MISSING) from error
