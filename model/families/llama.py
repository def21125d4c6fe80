"""Llama's layers with attention to both sides: EuroBERT, and NVIDIA's embedders."""

from dataclasses import replace

from model.config import EncoderConfig
from model.families.family import Family, TinyModel
from model.families.fields import (
    TINY_SIZES,
    Config,
    name_sizes,
    read_activation,
    read_sizes,
    refuse_other_values,
)
from model.families.ropes import read_single_rope

ATTENTION_LINEARS, FEED_FORWARD_LINEARS = (  # by our names
    ("query", "key", "value", "output"),
    ("gate", "up", "down"),
)
THETA = 10_000.0  # where config.json does not say
LINEAR_TENSORS = {  # of a layer: our names -> the checkpoint's
    "layers.{i}.query": "layers.{i}.self_attn.q_proj",
    "layers.{i}.key": "layers.{i}.self_attn.k_proj",
    "layers.{i}.value": "layers.{i}.self_attn.v_proj",
    "layers.{i}.output": "layers.{i}.self_attn.o_proj",
    "layers.{i}.gate": "layers.{i}.mlp.gate_proj",
    "layers.{i}.up": "layers.{i}.mlp.up_proj",
    "layers.{i}.down": "layers.{i}.mlp.down_proj",
}
TENSOR_NAMES = {  # our names -> the checkpoint's
    **LINEAR_TENSORS,
    "word": "embed_tokens",
    "layers.{i}.attention_norm": "layers.{i}.input_layernorm",
    "layers.{i}.feed_forward_norm": "layers.{i}.post_attention_layernorm",
    "final_norm": "norm",
}
TINY_LLAMA = {**TINY_SIZES, "num_attention_heads": 6, "num_key_value_heads": 3, "pad_token_id": 0}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of Llama's layers."""
    refuse_other_values(config)
    sizes = read_sizes(config, norm_eps="rms_norm_eps")
    biases: tuple[str, ...] = ATTENTION_LINEARS if config.get("attention_bias", False) else ()
    biases += FEED_FORWARD_LINEARS if config.get("mlp_bias", False) else ()
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        key_heads=config.get("num_key_value_heads"),
        head_size=config.get("head_dim"),
        positions="rotary",
        embedding_norm=False,
        pre_norm=True,
        first_norm=True,
        norm="rms",
        biases=biases,
        norm_bias=False,
        activation=read_activation(config, "hidden_act", "silu"),
        gated=True,
        ropes=(read_single_rope(config, THETA),) * sizes["layers"],
    )


EUROBERT = Family(
    name="eurobert",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("model.",),
    tiny_model=TinyModel("EuroBert", TINY_LLAMA),
    defaults=name_sizes(*(128256, 768, 12, 12, 3072, 8192), rms_norm_eps=1e-5),
)
NVIDIA = replace(EUROBERT, name="llama_bidirec", tiny_model=None, defaults={})
