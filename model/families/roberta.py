"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions begin after the padding token's row."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families import bert
from model.families.family import (
    MASKED_LM,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Family,
    HeadRecipe,
    TinyModel,
)
from model.families.fields import Config

HEAD_RECIPES = {  # by end of transformers' class name
    SEQUENCE_CLASSIFICATION: HeadRecipe(
        "classifier.out_proj", dense="classifier.dense", activation="tanh"
    ),
    TOKEN_CLASSIFICATION: HeadRecipe("classifier"),
    MASKED_LM: HeadRecipe(
        "lm_head.decoder", "lm_head.bias", dense="lm_head.dense", norm="lm_head.layer_norm"
    ),
}
CONFIG_DEFAULTS = bert.CONFIG_DEFAULTS | {"pad_token_id": 1}
TINY_ROBERTA = {  # config of a model for tests
    **bert.TINY_BERT,
    "max_position_embeddings": 42,
    "pad_token_id": 1,
    "type_vocab_size": 1,
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of RoBERTa: BERT's, with positions after the padding token's."""
    return with_offset_positions(bert.read_config(config), config["pad_token_id"])


def with_offset_positions(base: EncoderConfig, pad: int) -> EncoderConfig:
    """Return the config with positions from the row behind that of the padding token on."""
    return replace(base, max_tokens=base.max_tokens - pad - 1, position_offset=pad + 1, pad=pad)


ROBERTA = Family(
    name="roberta",
    read_config=read_config,
    tensor_names=(bert.TENSOR_NAMES,),
    prefixes=("roberta.",),
    tiny_model=TinyModel("Roberta", TINY_ROBERTA),
    defaults=CONFIG_DEFAULTS | {"vocab_size": 50265},
    head_recipes=HEAD_RECIPES,
    tokenizer_class="RobertaTokenizer",
)
XLM_ROBERTA = replace(
    ROBERTA,
    name="xlm-roberta",
    tiny_model=TinyModel("XLMRoberta", TINY_ROBERTA),
    defaults=CONFIG_DEFAULTS,
    tokenizer_class="XLMRobertaTokenizer",
)
CAMEMBERT = replace(
    XLM_ROBERTA,
    name="camembert",
    tiny_model=TinyModel("Camembert", TINY_ROBERTA),
    tokenizer_class="CamembertTokenizer",
)
