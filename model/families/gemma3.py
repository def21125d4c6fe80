"""Gemma 3, EmbeddingGemma's: two rotary bases, windows, and norms around each block."""

import math

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import llama, qwen3
from model.families.family import Family, TinyModel
from model.families.fields import (
    Config,
    name_sizes,
    read_activation,
    read_number,
    read_sizes,
    refuse_other_values,
)
from model.families.ropes import EVERYWHERE, LOCAL, read_dictionary, read_rope
from model.positions import Rope

GLOBAL_EVERY = 6  # of its layers, every sixth looks everywhere, where its config is silent
THETAS = {EVERYWHERE: ("rope_theta", 1e6), LOCAL: ("rope_local_base_freq", 1e4)}  # too
DEFAULT_HEAD_DIM = 256  # channels of a head, likewise
TENSOR_NAMES = {
    **qwen3.TENSOR_NAMES,
    "layers.{i}.output_norm": "layers.{i}.post_attention_layernorm",
    "layers.{i}.feed_forward_norm": "layers.{i}.pre_feedforward_layernorm",
    "layers.{i}.down_norm": "layers.{i}.post_feedforward_layernorm",
}
TINY_GEMMA3 = {
    **qwen3.TINY_QWEN3,
    "query_pre_attn_scalar": 11,
    "sliding_window": 16,
    "layer_types": [LOCAL, EVERYWHERE] * 2,
    "use_bidirectional_attention": True,
}


def read_config(config: Config) -> EncoderConfig:
    """Read the sizes, and which layers look how far."""
    refuse_other_values(config, attn_logit_softcapping=None)
    sizes, kinds = read_sizes(config, norm_eps="rms_norm_eps"), _read_kinds(config)
    ropes = _read_ropes(config)
    back, halved = qwen3.read_causal(config), config.get("use_bidirectional_attention", False)
    causal = back and not halved
    # back alone its code counts the token itself; halved, the config says the sum of both sides
    look = config["sliding_window"]
    if LOCAL in kinds and (type(look) is not int or look < 1):
        raise CheckpointError(f"not supported: sliding_window {look!r}")
    if LOCAL in kinds:
        look = look // 2 + (not back) if halved else look - back
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        key_heads=config["num_key_value_heads"],
        head_size=qwen3.read_head_dim(config, DEFAULT_HEAD_DIM),
        positions="rotary",
        embedding_norm=False,
        pre_norm=True,
        first_norm=True,
        head_norm=True,
        block_norm=True,
        norm="rms",
        norm_from_one=True,
        embedding_scale=math.sqrt(sizes["width"]),
        score_width=read_number(config, "query_pre_attn_scalar"),
        biases=llama.ATTENTION_LINEARS if config.get("attention_bias", False) else (),
        norm_bias=False,
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        gated=True,
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(look if kind == LOCAL else None for kind in kinds),
        causal=causal,
    )


def _read_kinds(config: Config) -> list[str]:
    """Read which layers look everywhere."""
    every, layers = config.get("sliding_window_pattern", GLOBAL_EVERY), config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        if type(every) is not int or every < 1:
            raise CheckpointError(f"not supported: sliding_window_pattern {every!r}")
        return [LOCAL if (layer + 1) % every else EVERYWHERE for layer in range(layers)]
    if not isinstance(kinds, list) or not {*map(str, kinds)} <= {EVERYWHERE, LOCAL}:
        raise CheckpointError(f"not supported: layer_types {kinds!r}")
    return kinds


def _read_ropes(config: Config) -> dict[str, Rope]:
    """Read the rotary angles by kind of layer; an older name counts where the newer is silent."""
    stated, over = (
        read_dictionary(config, "rope_parameters") or {},
        read_dictionary(config, "rope_scaling"),
    )
    if others := stated.keys() - THETAS.keys():
        named = ", ".join(sorted(others))
        raise CheckpointError(f"not supported: rope_parameters for other layer_types: {named}")
    ropes = {kind: dict(read_dictionary(stated, kind) or {}) for kind in THETAS}
    ropes[EVERYWHERE] |= over or {}
    for rope in ropes.values():
        refuse_other_values(
            rope, truncate=None
        )  # of one kind of layer, where transformers does not look for it
    return {
        kind: read_rope(config, ropes[kind], config.get(key, theta))
        for kind, (key, theta) in THETAS.items()
    }


FAMILY = Family(
    name="gemma3_text",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("model.",),
    tiny_model=TinyModel("Gemma3Text", TINY_GEMMA3, activation_key="hidden_activation"),
    defaults=name_sizes(
        *(262208, 2304, 26, 8, 9216, 131072),
        num_key_value_heads=4,
        rms_norm_eps=1e-6,
        query_pre_attn_scalar=256,
        sliding_window=4096,
    ),
    tokenizer_class="GemmaTokenizer",
)
