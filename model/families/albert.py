"""ALBERT: ELECTRA all of whose layers are one."""

from dataclasses import replace

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import bert
from model.families.family import MASKED_LM, SEQUENCE_CLASSIFICATION, Family, HeadRecipe, TinyModel
from model.families.fields import Config, name_sizes, refuse_other_values

_LAYER_PREFIX = "encoder.albert_layer_groups.{i}.albert_layers.0"  # the one layer's tensors
TENSOR_NAMES = {  # our names -> the checkpoint's
    **bert.TABLE_TENSORS,
    "project": "encoder.embedding_hidden_mapping_in",
    "layers.{i}.query": f"{_LAYER_PREFIX}.attention.query",
    "layers.{i}.key": f"{_LAYER_PREFIX}.attention.key",
    "layers.{i}.value": f"{_LAYER_PREFIX}.attention.value",
    "layers.{i}.output": f"{_LAYER_PREFIX}.attention.dense",
    "layers.{i}.attention_norm": f"{_LAYER_PREFIX}.attention.LayerNorm",
    "layers.{i}.up": f"{_LAYER_PREFIX}.ffn",
    "layers.{i}.down": f"{_LAYER_PREFIX}.ffn_output",
    "layers.{i}.feed_forward_norm": f"{_LAYER_PREFIX}.full_layer_layer_norm",
}
HEAD_RECIPES = bert.HEAD_RECIPES | {  # by end of transformers' class name
    SEQUENCE_CLASSIFICATION: HeadRecipe("classifier", dense="pooler", activation="tanh"),
    MASKED_LM: HeadRecipe(
        "predictions.decoder",
        "predictions.bias",
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        activation="gelu_new",
        activation_key="hidden_act",
    ),
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of ALBERT: BERT's, with one layer's weights in all layers."""
    refuse_other_values(config, num_hidden_groups=1, inner_group_num=1)
    width = config["embedding_size"]
    if width == config["hidden_size"]:  # it projects all the same
        raise CheckpointError(f"not supported: embedding_size {width} as width")
    return replace(bert.read_layers(config, width), shared=True)


FAMILY = Family(
    name="albert",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("albert.",),
    tiny_model=TinyModel("Albert", {**bert.TINY_BERT, "embedding_size": 24}),
    defaults=bert.CONFIG_DEFAULTS
    | name_sizes(30000, 4096, 12, 64, 16384, 512, embedding_size=128, hidden_act="gelu_new"),
    head_recipes=HEAD_RECIPES,
    tokenizer_class="AlbertTokenizer",
)
