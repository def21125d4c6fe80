"""BERT, which the other families are told apart from."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families.family import CLASSES, TOKENS, WORDS, Family, Names, Recipe, Tiny
from model.families.fields import TINY, Config, only, read_activation, read_sizes, sizes

TABLES = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
NAMES: Names = {
    **TABLES,
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
HEADS = {
    CLASSES: Recipe("classifier", dense="pooler.dense", activation="tanh"),
    TOKENS: Recipe("classifier"),
    WORDS: Recipe(
        "cls.predictions.decoder",
        "cls.predictions.bias",
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        key="hidden_act",
    ),
}
DEFAULTS = sizes(30522, 768, 12, 12, 3072, 512, layer_norm_eps=1e-12, type_vocab_size=2)
SMALL = {**TINY, "type_vocab_size": 3}


def read(config: Config) -> EncoderConfig:
    """Read BERT, whose embeddings are as wide as its layers."""
    width = config["hidden_size"]
    only(config, embedding_size=width)  # transformers' BERT would not read it
    return read_layers(config, width)


def read_layers(config: Config, embedding_width: int) -> EncoderConfig:
    """Read BERT's layers, over embeddings of any width."""
    only(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return replace(read_plain(config), embedding_width=embedding_width)


def read_plain(config: Config) -> EncoderConfig:
    """Read what BERT and its kin have alike; refuse no key."""
    sizes = read_sizes(config)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        types=config["type_vocab_size"],
        activation=read_activation(config, "hidden_act"),
    )


FAMILY = Family(
    name="bert",
    read=read,
    names=(NAMES,),
    prefixes=("bert.",),
    tiny=Tiny("Bert", SMALL),
    defaults=DEFAULTS,
    heads=HEADS,
    tokenizer="BertTokenizer",
)
