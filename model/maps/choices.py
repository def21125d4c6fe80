"""What can be asked of attention, by name. Without torch, for code that only describes it."""

import re
from typing import Any, Literal

Form = Literal["full", "rows", "top", "blocks", "stats", "dominance", "rollout"]
Weight = Literal["probability", "value_norm"]
Level = Literal["token", "word"]
Specials = Literal["keep", "drop", "renormalize"]
HEAD_NAME = re.compile(r"L(0|[1-9][0-9]{0,8})H(0|[1-9][0-9]{0,8})", re.ASCII)  # layer and head
STATISTIC_FIELDS = (  # of the form stats
    "self",
    "previous",
    "next",
    "cls",
    "sep",
    "entropy",
    "entropy_ratio",
    "confidence",
    "distance",
    "received_max",
    "contribution",
)


def group_heads_by_layer(heads: Any) -> Any:
    """Return heads that are named, "L5H11" or a list of such, by layer; anything else as it is.

    Example:
        >>> group_heads_by_layer(["L5H11", "L0H5", "L5H2"])
        {'5': [11, 2], '0': [5]}
    """
    names = [heads] if isinstance(heads, str) else heads
    if not isinstance(names, list) or not names or not all(map(_is_head_name, names)):
        return heads
    named: dict[str, list[int]] = {}
    for layer, head in (name[1:].split("H") for name in names):
        named.setdefault(layer, []).append(int(head))
    return named


def _is_head_name(value: object) -> bool:
    return isinstance(value, str) and HEAD_NAME.fullmatch(value) is not None
