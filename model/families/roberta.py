"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions begin after the padding token's row."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families import bert
from model.families.family import CLASSES, TOKENS, WORDS, Family, Recipe, Tiny
from model.families.fields import Config

HEADS = {
    CLASSES: Recipe("classifier.out_proj", dense="classifier.dense", activation="tanh"),
    TOKENS: Recipe("classifier"),
    WORDS: Recipe(
        "lm_head.decoder", "lm_head.bias", dense="lm_head.dense", norm="lm_head.layer_norm"
    ),
}
DEFAULTS = bert.DEFAULTS | {"pad_token_id": 1}
SMALL = {**bert.SMALL, "max_position_embeddings": 42, "pad_token_id": 1, "type_vocab_size": 1}


def read(config: Config) -> EncoderConfig:
    """Read BERT's sizes, and the padding token."""
    return behind_pad(bert.read(config), config["pad_token_id"])


def behind_pad(base: EncoderConfig, pad: int) -> EncoderConfig:
    """Return the same sizes, with positions from the row behind the padding token's on."""
    return replace(base, max_tokens=base.max_tokens - pad - 1, position_offset=pad + 1, pad=pad)


ROBERTA = Family(
    name="roberta",
    read=read,
    names=(bert.NAMES,),
    prefixes=("roberta.",),
    tiny=Tiny("Roberta", SMALL),
    defaults=DEFAULTS | {"vocab_size": 50265},
    heads=HEADS,
    tokenizer="RobertaTokenizer",
)
XLM_ROBERTA = replace(
    ROBERTA,
    name="xlm-roberta",
    tiny=Tiny("XLMRoberta", SMALL),
    defaults=DEFAULTS,
    tokenizer="XLMRobertaTokenizer",
)
CAMEMBERT = replace(
    XLM_ROBERTA, name="camembert", tiny=Tiny("Camembert", SMALL), tokenizer="CamembertTokenizer"
)
