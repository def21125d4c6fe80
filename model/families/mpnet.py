"""MPNet: RoBERTa without token types, with a learned bias of each distance."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families import bert, roberta
from model.families.family import Family, TinyModel
from model.families.fields import TINY_SIZES, Config

PAD_TOKEN_ID = 1  # written into its code, not its config
TENSOR_NAMES = {  # our names -> the checkpoint's
    **bert.TENSOR_NAMES,
    "distances": "encoder.relative_attention_bias",
    "layers.{i}.query": "encoder.layer.{i}.attention.attn.q",
    "layers.{i}.key": "encoder.layer.{i}.attention.attn.k",
    "layers.{i}.value": "encoder.layer.{i}.attention.attn.v",
    "layers.{i}.output": "encoder.layer.{i}.attention.attn.o",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of MPNet: RoBERTa's, with a learned bias by distance."""
    base = roberta.with_offset_positions(
        bert.read_config({**config, "type_vocab_size": 0}), PAD_TOKEN_ID
    )
    return replace(base, buckets=config["relative_attention_num_buckets"])


FAMILY = Family(
    name="mpnet",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("mpnet.",),
    tiny_model=TinyModel("MPNet", {**TINY_SIZES, "max_position_embeddings": 42, "pad_token_id": 1}),
    defaults=bert.CONFIG_DEFAULTS | {"vocab_size": 30527, "relative_attention_num_buckets": 32},
    head_recipes=roberta.HEAD_RECIPES,
    tokenizer_class="MPNetTokenizer",
)
