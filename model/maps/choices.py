"""What can be asked of attention, by name. Without torch, for those who only describe it."""

from typing import Literal

Form = Literal["full", "rows", "top", "blocks", "stats", "dominance", "rollout"]
Weight = Literal["probability", "value_norm"]
Level = Literal["token", "word"]
Specials = Literal["keep", "drop", "renormalize"]
FIELDS = (  # of the form stats
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
