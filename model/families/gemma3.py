"""Gemma 3, EmbeddingGemma's: two rotary bases, windows, and norms around each block."""

import math

from model.attention.positions import Rope
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
from model.families.ropes import EVERYWHERE, LOCAL, read_dictionary, read_ropes

GLOBAL_EVERY = 6  # without layer_types every sixth layer attends everywhere
# by kind of layer, the key of the rotary base, and its default
THETAS = {EVERYWHERE: ("rope_theta", 1e6), LOCAL: ("rope_local_base_freq", 1e4)}
DEFAULT_HEAD_DIM = 256  # channels of a head where config.json does not say
TENSOR_NAMES = {  # our names -> the checkpoint's
    **qwen3.TENSOR_NAMES,
    "layers.{i}.output_norm": "layers.{i}.post_attention_layernorm",
    "layers.{i}.feed_forward_norm": "layers.{i}.pre_feedforward_layernorm",
    "layers.{i}.down_norm": "layers.{i}.post_feedforward_layernorm",
}
TINY_GEMMA3 = {  # config of a model for tests
    **qwen3.TINY_QWEN3,
    "query_pre_attn_scalar": 11,
    "sliding_window": 16,
    "layer_types": [LOCAL, EVERYWHERE] * 2,
    "use_bidirectional_attention": True,
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of Gemma 3."""
    refuse_other_values(config, attn_logit_softcapping=None)
    sizes, kinds = read_sizes(config, norm_eps="rms_norm_eps"), _read_layer_types(config)
    ropes = _read_ropes(config)
    is_causal, both_sides = (
        qwen3.read_causal(config),
        config.get("use_bidirectional_attention", False),
    )
    causal = is_causal and not both_sides
    # a causal window counts the token itself; of both sides, the config has the sum
    window = config["sliding_window"]
    if LOCAL in kinds and (type(window) is not int or window < 1):
        raise CheckpointError(f"not supported: sliding_window {window!r}")
    if LOCAL in kinds:
        window = window // 2 + (not is_causal) if both_sides else window - is_causal
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
        windows=tuple(window if kind == LOCAL else None for kind in kinds),
        causal=causal,
    )


def _read_layer_types(config: Config) -> list[str]:
    """Return the kind of each layer, EVERYWHERE or LOCAL."""
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
    """Return the rotary embedding by kind of layer; older keys fill what newer ones lack."""
    settings = dict(read_dictionary(config, "rope_parameters") or {})
    if over := read_dictionary(config, "rope_scaling"):
        settings[EVERYWHERE] = {**(read_dictionary(settings, EVERYWHERE) or {}), **over}
    thetas = {kind: config.get(key, theta) for kind, (key, theta) in THETAS.items()}
    return read_ropes(config, settings, thetas)


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
