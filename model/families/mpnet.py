"""MPNet: RoBERTa without token types, with a learned bias of each distance."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families import bert, roberta
from model.families.family import Family, Tiny
from model.families.fields import TINY, Config

PAD = 1  # written into its code, not its config
NAMES = {
    **bert.NAMES,
    "distances": "encoder.relative_attention_bias",
    "layers.{i}.query": "encoder.layer.{i}.attention.attn.q",
    "layers.{i}.key": "encoder.layer.{i}.attention.attn.k",
    "layers.{i}.value": "encoder.layer.{i}.attention.attn.v",
    "layers.{i}.output": "encoder.layer.{i}.attention.attn.o",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
}


def read(config: Config) -> EncoderConfig:
    """Read BERT's sizes, and how many distances have a bias."""
    base = roberta.behind_pad(bert.read({**config, "type_vocab_size": 0}), PAD)
    return replace(base, buckets=config["relative_attention_num_buckets"])


FAMILY = Family(
    name="mpnet",
    read=read,
    names=(NAMES,),
    prefixes=("mpnet.",),
    tiny=Tiny("MPNet", {**TINY, "max_position_embeddings": 42, "pad_token_id": 1}),
    defaults=bert.DEFAULTS | {"vocab_size": 30527, "relative_attention_num_buckets": 32},
    heads=roberta.HEADS,
    tokenizer="MPNetTokenizer",
)
