"""The names of the choices that a request has about attention. No torch, for code without it."""

import re
from typing import Any, Literal

# how attention is shown: whole maps, some rows, each row's k strongest keys, maps pooled in blocks
# or in segments, statistics, each row's strongest key, one map through all layers, see forms.py, or
# the parts that scores come from, see why.py
Form = Literal["full", "rows", "top", "blocks", "mean", "stats", "dominance", "rollout", "why"]
MEAN: Literal["mean"] = "mean"  # stands for a head where a map is the mean over all of its layer's
Weight = Literal["probability", "value_norm"]  # of a key; see tiles.MapReader
Level = Literal["token", "word"]  # what a row and a column stand for
Specials = Literal["keep", "drop", "renormalize"]  # what happens to special tokens
NUMBER = "(0|[1-9][0-9]{0,8})"  # of a layer or a head
HEAD_NAME = re.compile(f"L{NUMBER}H{NUMBER}")  # layer and head
HEADS_NAME = re.compile(f"L{NUMBER}(H{NUMBER})?")  # or a layer, for all of its heads
STATISTIC_FIELDS = (  # of the form stats
    *("self", "previous", "next", "cls", "sep", "entropy", "entropy_ratio", "confidence"),
    *("distance", "received_max", "contribution"),
)


def group_heads_by_layer(heads: Any) -> Any:
    """Group heads named as "L5H11" by layer; "L0" is all heads of layer 0.

    Returns:
        The heads by layer, of one name or a list of names; any other value as it is.

    Example:
        >>> group_heads_by_layer(["L5H11", "L0", "L5H2"])
        {'5': [11, 2], '0': 'all'}
    """
    names = [heads] if isinstance(heads, str) else heads
    if not isinstance(names, list) or not names:
        return heads
    if not all(isinstance(name, str) and HEADS_NAME.fullmatch(name) for name in names):
        return heads
    by_layer: dict[str, list[int | str]] = {}
    for layer, _, head in (name[1:].partition("H") for name in names):
        by_layer.setdefault(layer, []).append(int(head) if head else "all")
    return {layer: "all" if "all" in named else named for layer, named in by_layer.items()}
