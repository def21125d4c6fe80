"""BERT, on which most other families are based."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families.family import (
    MASKED_LM,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Family,
    HeadRecipe,
    TensorNames,
    TinyModel,
)
from model.families.fields import (
    TINY_SIZES,
    Config,
    name_sizes,
    read_activation,
    read_sizes,
    refuse_other_values,
)

TABLE_TENSORS = {  # of the embeddings: our names -> the checkpoint's
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
TENSOR_NAMES: TensorNames = {  # our names -> the checkpoint's
    **TABLE_TENSORS,
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
HEAD_RECIPES = {  # by end of transformers' class name
    SEQUENCE_CLASSIFICATION: HeadRecipe("classifier", dense="pooler.dense", activation="tanh"),
    TOKEN_CLASSIFICATION: HeadRecipe("classifier"),
    MASKED_LM: HeadRecipe(
        "cls.predictions.decoder",
        "cls.predictions.bias",
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        activation_key="hidden_act",
    ),
}
CONFIG_DEFAULTS = name_sizes(30522, 768, 12, 12, 3072, 512, layer_norm_eps=1e-12, type_vocab_size=2)
TINY_BERT = {**TINY_SIZES, "type_vocab_size": 3}  # config of a model for tests


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of BERT, whose embeddings are as wide as its layers."""
    width = config["hidden_size"]
    refuse_other_values(config, embedding_size=width)  # transformers' BERT would not read it
    return read_layers(config, width)


def read_layers(config: Config, embedding_width: int) -> EncoderConfig:
    """Return the encoder config of BERT's layers, over embeddings of any width."""
    refuse_other_values(
        config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False
    )
    return replace(read_shared_keys(config), embedding_width=embedding_width)


def read_shared_keys(config: Config) -> EncoderConfig:
    """Return the encoder config by the keys that BERT's relatives share; refuse no key."""
    sizes = read_sizes(config)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        types=config["type_vocab_size"],
        activation=read_activation(config, "hidden_act"),
    )


FAMILY = Family(
    name="bert",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("bert.",),
    tiny_model=TinyModel("Bert", TINY_BERT),
    defaults=CONFIG_DEFAULTS,
    head_recipes=HEAD_RECIPES,
    tokenizer_class="BertTokenizer",
)
