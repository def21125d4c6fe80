"""What a config.json of each family means.

A reader refuses by name whatever the encoder would not compute exactly; a key that decides about
the arithmetic is never guessed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model.config import Activation, EncoderConfig
from model.errors import CheckpointError
from model.loading.files import differences

Config = Mapping[str, Any]  # what a config.json holds

# of the sizes, in most families
KEYS = {
    "family": "model_type",
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "max_tokens": "max_position_embeddings",
    "norm_eps": "layer_norm_eps",
}
KEYS_OF_NOMIC_HUB = {
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "feed_forward": "n_inner",
    "max_tokens": "n_positions",
    "norm_eps": "layer_norm_epsilon",
}
NORM_EPS_OF_DISTILBERT = 1e-12  # written into its code, not its config
PAD_OF_MPNET = 1  # likewise
EVERYWHERE, LOCAL = "full_attention", "sliding_attention"  # ModernBERT's kinds of layer
LOCAL_EVERY = 3  # of ModernBERT's layers, every third one looks everywhere
THETA_EVERYWHERE, THETA_LOCAL = 160_000.0, 10_000.0  # ModernBERT's, where its config is silent
THETA_OF_NOMIC = 1000.0
# transformers' names; those of one arithmetic differ in the order of its steps alone
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def bert(config: Config) -> EncoderConfig:
    """BERT and ELECTRA."""
    _only(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return EncoderConfig(
        **_sizes(config),
        embedding_width=config.get("embedding_size", config["hidden_size"]),
        types=config["type_vocab_size"],
        activation=_activation(config, "hidden_act"),
    )


def roberta(config: Config) -> EncoderConfig:
    """BERT whose positions begin behind the padding token's row."""
    return _behind_pad(bert(config), config["pad_token_id"])


def distilbert(config: Config) -> EncoderConfig:
    """BERT without token types, under keys of its own."""
    sizes = _sizes(
        {**config, "layer_norm_eps": NORM_EPS_OF_DISTILBERT},
        width="dim",
        layers="n_layers",
        heads="n_heads",
        feed_forward="hidden_dim",
    )
    activation = _activation(config, "activation")
    return EncoderConfig(**sizes, embedding_width=sizes["width"], activation=activation)


def mpnet(config: Config) -> EncoderConfig:
    """RoBERTa without token types, with a learned bias of each distance."""
    base = _behind_pad(bert({**config, "type_vocab_size": 0}), PAD_OF_MPNET)
    return replace(base, buckets=config["relative_attention_num_buckets"])


def nomic(config: Config) -> EncoderConfig:
    """NomicBERT, in the hub's spelling (n_embd ..) or transformers' (hidden_size ..)."""
    hub = "n_embd" in config
    _only(
        config,
        prenorm=False,
        parallel_block=False,
        causal=False,
        use_rms_norm=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_emb_scale_base=None,
        rotary_scaling_factor=None,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        activation_function="swiglu",
        num_experts=0,
        **({"hidden_act": "silu"} if hub else {}),  # its code knows activation_function alone
    )
    sizes = _sizes(config, **(KEYS_OF_NOMIC_HUB if hub else {}))
    rope = config.get("rope_parameters")
    theta = config["rotary_emb_base"] if hub else _theta(rope, THETA_OF_NOMIC)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        biases=False,
        activation=_activation(config, "hidden_act", "silu"),
        gated=True,
        thetas=(float(theta),) * sizes["layers"],
    )


def modernbert(config: Config) -> EncoderConfig:
    """Pre-norm and rotary; most layers look no farther than a window."""
    _only(config, attention_bias=False, mlp_bias=False, norm_bias=False)
    every = config.get("global_attn_every_n_layers", LOCAL_EVERY)
    kinds = config.get("layer_types") or [
        LOCAL if i % every else EVERYWHERE for i in range(config["num_hidden_layers"])
    ]
    unknown = set(kinds) - {EVERYWHERE, LOCAL}
    if unknown:
        raise CheckpointError(f"not supported: layer_types {sorted(unknown)}")
    ropes = config.get("rope_parameters") or {}
    everywhere = config.get("global_rope_theta", THETA_EVERYWHERE)
    local = config.get("local_rope_theta", THETA_LOCAL)
    thetas = {
        EVERYWHERE: _theta(ropes.get(EVERYWHERE), everywhere),
        LOCAL: _theta(ropes.get(LOCAL), local),
    }
    window = config["local_attention"] // 2
    return EncoderConfig(
        **_sizes(config, norm_eps="norm_eps"),
        embedding_width=config["hidden_size"],
        positions="rotary",
        pre_norm=True,
        biases=False,
        norm_bias=False,
        activation=_activation(config, "hidden_activation"),
        gated=True,
        thetas=tuple(thetas[kind] for kind in kinds),
        windows=tuple(window if kind == LOCAL else None for kind in kinds),
    )


def _sizes(config: Config, **keys: str) -> dict[str, Any]:
    """The sizes, by KEYS but for those that the family calls otherwise."""
    return {size: config[key] for size, key in (KEYS | keys).items()}


def _only(config: Config, **supported: object) -> None:
    """Refuse the keys that are there and differ; name them all."""
    if wrong := differences(config, supported):
        raise CheckpointError(f"not supported: {', '.join(wrong)}")


def _activation(config: Config, key: str, default: str = "gelu") -> Activation:
    """The activation that a key names; other names are refused."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"not supported: {key} {name!r}; these are: {supported}")
    return ACTIVATIONS[name]


def _behind_pad(base: EncoderConfig, pad: int) -> EncoderConfig:
    """The same sizes, with positions from the row behind the padding token's on."""
    return replace(base, max_tokens=base.max_tokens - pad - 1, position_offset=pad + 1, pad=pad)


def _theta(rope: Config | None, default: float) -> float:
    """The base of rotary angles; scaled kinds are refused."""
    rope = rope or {}
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"not supported: rope_type {rope['rope_type']!r}")
    return float(rope.get("rope_theta", default))
