"""ELECTRA: BERT whose embeddings have a width of their own."""

from model.config import EncoderConfig
from model.families import bert
from model.families.family import MASKED_LM, SEQUENCE_CLASSIFICATION, Family, HeadRecipe, TinyModel
from model.families.fields import Config, name_sizes

HEAD_RECIPES = bert.HEAD_RECIPES | {  # by end of transformers' class name
    SEQUENCE_CLASSIFICATION: HeadRecipe("classifier.out_proj", dense="classifier.dense"),
    MASKED_LM: HeadRecipe(
        "generator_lm_head",
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
    ),
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of ELECTRA: BERT's, with the embeddings' width."""
    return bert.read_layers(config, config["embedding_size"])


FAMILY = Family(
    name="electra",
    read_config=read_config,
    tensor_names=({**bert.TENSOR_NAMES, "project": "embeddings_project"},),
    prefixes=("electra.",),
    tiny_model=TinyModel("Electra", {**bert.TINY_BERT, "embedding_size": 24}),
    defaults=bert.CONFIG_DEFAULTS | name_sizes(30522, 256, 12, 4, 1024, 512, embedding_size=128),
    head_recipes=HEAD_RECIPES,
    tokenizer_class="BertTokenizer",
)
