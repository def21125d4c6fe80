"""ERNIE: BERT with a table of pretraining tasks, of which texts have the first."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families import bert
from model.families.family import TinyModel
from model.families.fields import Config


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of ERNIE: BERT's, with the number of pretraining tasks."""
    kinds = config["task_type_vocab_size"] if config.get("use_task_id", False) else 0
    return replace(bert.read_config(config), kinds=kinds)


FAMILY = replace(
    bert.FAMILY,
    name="ernie",
    read_config=read_config,
    tensor_names=({**bert.TENSOR_NAMES, "kinds": "embeddings.task_type_embeddings"},),
    prefixes=("ernie.",),
    tiny_model=TinyModel("Ernie", {**bert.TINY_BERT, "use_task_id": True}),
    defaults=bert.CONFIG_DEFAULTS | {"task_type_vocab_size": 3},
    spare_prefixes=("embeddings.task_type_",),
)
