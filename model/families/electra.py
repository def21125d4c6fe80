"""ELECTRA: BERT whose embeddings have a width of their own."""

from model.config import EncoderConfig
from model.families import bert
from model.families.family import CLASSES, WORDS, Family, Recipe, Tiny
from model.families.fields import Config, sizes

HEADS = bert.HEADS | {
    CLASSES: Recipe("classifier.out_proj", dense="classifier.dense"),
    WORDS: Recipe(
        "generator_lm_head",
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
    ),
}


def read(config: Config) -> EncoderConfig:
    """Read BERT's sizes, and the embeddings' width."""
    return bert.read_layers(config, config["embedding_size"])


FAMILY = Family(
    name="electra",
    read=read,
    names=({**bert.NAMES, "project": "embeddings_project"},),
    prefixes=("electra.",),
    tiny=Tiny("Electra", {**bert.SMALL, "embedding_size": 24}),
    defaults=bert.DEFAULTS | sizes(30522, 256, 12, 4, 1024, 512, embedding_size=128),
    heads=HEADS,
    tokenizer="BertTokenizer",
)
