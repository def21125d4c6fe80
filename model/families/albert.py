"""ALBERT: ELECTRA all of whose layers are one."""

from dataclasses import replace

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import bert
from model.families.family import CLASSES, WORDS, Family, Recipe, Tiny
from model.families.fields import Config, only, sizes

_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0"
NAMES = {
    **bert.TABLES,
    "project": "encoder.embedding_hidden_mapping_in",
    "layers.{i}.query": f"{_LAYER}.attention.query",
    "layers.{i}.key": f"{_LAYER}.attention.key",
    "layers.{i}.value": f"{_LAYER}.attention.value",
    "layers.{i}.output": f"{_LAYER}.attention.dense",
    "layers.{i}.attention_norm": f"{_LAYER}.attention.LayerNorm",
    "layers.{i}.up": f"{_LAYER}.ffn",
    "layers.{i}.down": f"{_LAYER}.ffn_output",
    "layers.{i}.feed_forward_norm": f"{_LAYER}.full_layer_layer_norm",
}
HEADS = bert.HEADS | {
    CLASSES: Recipe("classifier", dense="pooler", activation="tanh"),
    WORDS: Recipe(
        "predictions.decoder",
        "predictions.bias",
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        activation="gelu_new",
        key="hidden_act",
    ),
}


def read(config: Config) -> EncoderConfig:
    """Read BERT's sizes, of one layer for all."""
    only(config, num_hidden_groups=1, inner_group_num=1)
    width = config["embedding_size"]
    if width == config["hidden_size"]:  # it projects all the same
        raise CheckpointError(f"not supported: embedding_size {width} as width")
    return replace(bert.read_layers(config, width), shared=True)


FAMILY = Family(
    name="albert",
    read=read,
    names=(NAMES,),
    prefixes=("albert.",),
    tiny=Tiny("Albert", {**bert.SMALL, "embedding_size": 24}),
    defaults=bert.DEFAULTS
    | sizes(30000, 4096, 12, 64, 16384, 512, embedding_size=128, hidden_act="gelu_new"),
    heads=HEADS,
    tokenizer="AlbertTokenizer",
)
