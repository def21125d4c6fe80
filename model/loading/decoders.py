"""What a config.json of a decoder means, of which only the token vectors are wanted.

As in configs.py: what the encoder would not compute exactly is refused by name.
"""

import math
from dataclasses import replace

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.loading.configs import read_activation, read_sizes
from model.loading.ropes import Config, number, only, read_rope, read_stated, single_rope
from model.positions import Rope

EVERYWHERE, LOCAL = "full_attention", "sliding_attention"  # Gemma's kinds of layer
LOCAL_BUT = 6  # of its layers, every sixth looks everywhere, where its config is silent
THETAS_OF_GEMMA = {EVERYWHERE: ("rope_theta", 1e6), LOCAL: ("rope_local_base_freq", 1e4)}  # too
PROJECTIONS, FEED_FORWARD = ("query", "key", "value", "output"), ("gate", "up", "down")
THETA_OF_LLAMA = 10_000.0  # where its config is silent, Qwen3's too
HEAD_OF_QWEN3, HEAD_OF_GEMMA = 128, 256  # likewise


def llama(config: Config) -> EncoderConfig:
    """Read Llama's layers that look to both sides: EuroBERT, and NVIDIA's embedders."""
    only(config)
    sizes = read_sizes(config, norm_eps="rms_norm_eps")
    biases: tuple[str, ...] = PROJECTIONS if config.get("attention_bias", False) else ()
    biases += FEED_FORWARD if config.get("mlp_bias", False) else ()
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
        ropes=(single_rope(config, THETA_OF_LLAMA),) * sizes["layers"],
    )


def qwen3(config: Config) -> EncoderConfig:
    """Read Qwen3: Llama as it was, mostly causal, with norms of queries and keys."""
    only(config, use_sliding_window=False)
    everywhere = ["full_attention"] * config["num_hidden_layers"]
    only(config, **({} if config.get("layer_types") is None else {"layer_types": everywhere}))
    own = {"num_key_value_heads": config["num_key_value_heads"], "mlp_bias": False}
    base = llama({**config, **own, "head_dim": _head(config, HEAD_OF_QWEN3)})
    return replace(base, head_norm=True, causal=_causal(config))


def _head(config: Config, default: int) -> int:
    """Read the channels of a head; null is none to transformers' class, which does not load it."""
    head: int | None = config.get("head_dim", default)
    if head is None:
        raise CheckpointError("not supported: head_dim null")
    return head


def _causal(config: Config) -> bool:
    """Read whether tokens look back alone; of null transformers' kernels differ."""
    causal = config.get("is_causal", True)
    if not isinstance(causal, bool):
        raise CheckpointError(f"not supported: is_causal {causal!r}")
    return causal


def gemma3(config: Config) -> EncoderConfig:
    """Read Gemma 3, EmbeddingGemma's: two rotary bases, windows, and norms around each block."""
    only(config, attn_logit_softcapping=None)
    sizes, kinds = read_sizes(config, norm_eps="rms_norm_eps"), _kinds_of_gemma(config)
    ropes = _ropes_of_gemma(config)
    back, halved = _causal(config), config.get("use_bidirectional_attention", False)
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
        head_size=_head(config, HEAD_OF_GEMMA),
        positions="rotary",
        embedding_norm=False,
        pre_norm=True,
        first_norm=True,
        head_norm=True,
        block_norm=True,
        norm="rms",
        norm_from_one=True,
        embedding_scale=math.sqrt(sizes["width"]),
        score_width=number(config, "query_pre_attn_scalar"),
        biases=PROJECTIONS if config.get("attention_bias", False) else (),
        norm_bias=False,
        activation=read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        gated=True,
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(look if kind == LOCAL else None for kind in kinds),
        causal=causal,
    )


def _kinds_of_gemma(config: Config) -> list[str]:
    """Read which layers look everywhere."""
    every, layers = config.get("sliding_window_pattern", LOCAL_BUT), config["num_hidden_layers"]
    kinds = config.get("layer_types")
    if kinds is None:
        if type(every) is not int or every < 1:
            raise CheckpointError(f"not supported: sliding_window_pattern {every!r}")
        return [LOCAL if (layer + 1) % every else EVERYWHERE for layer in range(layers)]
    if not isinstance(kinds, list) or not {*map(str, kinds)} <= {EVERYWHERE, LOCAL}:
        raise CheckpointError(f"not supported: layer_types {kinds!r}")
    return kinds


def _ropes_of_gemma(config: Config) -> dict[str, Rope]:
    """Read the rotary angles by kind of layer; an older name counts where the newer is silent."""
    stated, over = read_stated(config, "rope_parameters") or {}, read_stated(config, "rope_scaling")
    if others := stated.keys() - THETAS_OF_GEMMA.keys():
        named = ", ".join(sorted(others))
        raise CheckpointError(f"not supported: rope_parameters for other layer_types: {named}")
    ropes = {kind: dict(read_stated(stated, kind) or {}) for kind in THETAS_OF_GEMMA}
    ropes[EVERYWHERE] |= over or {}
    for rope in ropes.values():
        only(rope, truncate=None)  # of one kind of layer, where transformers does not look for it
    return {
        kind: read_rope(config, ropes[kind], config.get(key, theta))
        for kind, (key, theta) in THETAS_OF_GEMMA.items()
    }
