"""ERNIE: BERT with a table of pretraining tasks, of which texts have the first."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families import bert
from model.families.family import Tiny
from model.families.fields import Config


def read(config: Config) -> EncoderConfig:
    """Read BERT's sizes, and how many tasks there are."""
    kinds = config["task_type_vocab_size"] if config.get("use_task_id", False) else 0
    return replace(bert.read(config), kinds=kinds)


FAMILY = replace(
    bert.FAMILY,
    name="ernie",
    read=read,
    names=({**bert.NAMES, "kinds": "embeddings.task_type_embeddings"},),
    prefixes=("ernie.",),
    tiny=Tiny("Ernie", {**bert.SMALL, "use_task_id": True}),
    defaults=bert.DEFAULTS | {"task_type_vocab_size": 3},
    spare=("embeddings.task_type_",),
)
