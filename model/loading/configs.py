"""What a config.json of each family means.

A reader refuses by name whatever the encoder would not compute exactly; a key that decides about
the arithmetic is never guessed.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model.config import LINEARS, Activation, EncoderConfig
from model.errors import CheckpointError
from model.loading.files import differences
from model.positions import Linear, Llama3, Ntk, Proportional, Rope, Yarn

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
THETA_OF_NOMIC, THETA_OF_GTE, THETA_OF_JINA = 1000.0, 160_000.0, 20_000.0
GTE_OF_HUB = "new"  # model_type of GTE's own code, which transformers' "gte" does not read
OF_NTK = {"type", "factor"}
EMBEDDING_OF_ELECTRA = 128  # ELECTRA's, likewise
MOST = sys.float_info.max
# what every kind of rotary angles may hold, and what else each kind reads
OF_ALL_ROPES = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
ROPES = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "proportional": {"factor"},
    "llama3": {
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    },
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}
# transformers' names; those of one function differ only in the order of its steps
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
    """Read BERT, whose embeddings are as wide as its layers."""
    _only(config, embedding_size=config["hidden_size"])  # transformers' BERT would not read it
    return electra({**config, "embedding_size": config["hidden_size"]})


def electra(config: Config) -> EncoderConfig:
    """Read ELECTRA: BERT whose embeddings have a width of their own."""
    _only(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return EncoderConfig(
        **_sizes(config),
        embedding_width=config.get("embedding_size", EMBEDDING_OF_ELECTRA),
        types=config["type_vocab_size"],
        activation=_activation(config, "hidden_act"),
    )


def ernie(config: Config) -> EncoderConfig:
    """Read ERNIE: BERT with a table of pretraining tasks, of which texts have the first."""
    kinds = config["task_type_vocab_size"] if config.get("use_task_id", False) else 0
    return replace(bert(config), kinds=kinds)


def albert(config: Config) -> EncoderConfig:
    """Read ALBERT: ELECTRA all of whose layers are one."""
    _only(config, num_hidden_groups=1, inner_group_num=1)
    if config["embedding_size"] == config["hidden_size"]:  # it projects all the same
        raise CheckpointError(f"not supported: embedding_size {config['embedding_size']} as width")
    return replace(electra(config), shared=True)


def roberta(config: Config) -> EncoderConfig:
    """Read RoBERTa: BERT whose positions begin after the padding token's row."""
    return _behind_pad(bert(config), config["pad_token_id"])


def distilbert(config: Config) -> EncoderConfig:
    """Read DistilBERT: BERT without token types, under keys of its own."""
    # the other families' names for three of them, which transformers follows where both are present
    own = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    _only(config, **{name: config[key] for name, key in own.items()})
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
    """Read MPNet: RoBERTa without token types, with a learned bias of each distance."""
    base = _behind_pad(bert({**config, "type_vocab_size": 0}), PAD_OF_MPNET)
    return replace(base, buckets=config["relative_attention_num_buckets"])


def nomic(config: Config) -> EncoderConfig:
    """Read NomicBERT, in the hub's spelling (n_embd ..) or transformers' (hidden_size ..)."""
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
        **({"hidden_act": "silu"} if hub else {}),  # its code reads only activation_function
    )
    sizes = _sizes(config, **(KEYS_OF_NOMIC_HUB if hub else {}))
    rope = _nomic_hub_rope(config) if hub else _single_rope(config, THETA_OF_NOMIC)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        biases=(),
        activation=_activation(config, "hidden_act", "silu"),
        gated=True,
        ropes=(rope,) * sizes["layers"],
    )


def gte(config: Config) -> EncoderConfig:
    """Read GTE, in transformers' spelling ("gte") or the hub's ("new"): gates without biases."""
    _only(
        config,
        position_embedding_type="rope",
        layer_norm_type="layer_norm",
        logn_attention_scale=False,
        pack_qkv=True,
    )
    sizes = _sizes(config)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        biases=tuple(name for name in LINEARS if name not in ("gate", "up")),
        activation=_activation(config, "hidden_act"),
        gated=True,
        ropes=(_gte_rope(config),) * sizes["layers"],
    )


def jina(config: Config) -> EncoderConfig:
    """Read Jina Embeddings v3: BERT with rotary positions."""
    _only(config, position_embedding_type="rotary", lora_adaptations=None)
    sizes = _sizes(config)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        activation=_activation(config, "hidden_act"),
        ropes=(_single_rope(config, THETA_OF_JINA),) * sizes["layers"],
    )


def modernbert(config: Config) -> EncoderConfig:
    """Read ModernBERT: pre-norm and rotary; most layers look no farther than a window."""
    window = config["local_attention"] // 2
    _only(config, attention_bias=False, mlp_bias=False, norm_bias=False, sliding_window=window)
    every = config.get("global_attn_every_n_layers", LOCAL_EVERY)
    kinds = config.get("layer_types") or [
        LOCAL if i % every else EVERYWHERE for i in range(config["num_hidden_layers"])
    ]
    unknown = set(kinds) - {EVERYWHERE, LOCAL}
    if unknown:
        raise CheckpointError(f"not supported: layer_types {sorted(unknown)}")
    ropes = _modernbert_ropes(config)
    return EncoderConfig(
        **_sizes(config, norm_eps="norm_eps"),
        embedding_width=config["hidden_size"],
        positions="rotary",
        pre_norm=True,
        biases=(),
        norm_bias=False,
        activation=_activation(config, "hidden_activation"),
        gated=True,
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(window if kind == LOCAL else None for kind in kinds),
    )


def _sizes(config: Config, **keys: str) -> dict[str, Any]:
    """Return the sizes, by KEYS except for those that the family names differently."""
    return {size: config[key] for size, key in (KEYS | keys).items()}


def _only(config: Config, **supported: object) -> None:
    """Refuse keys present with other values, and layers with sizes of their own; name them all."""
    if wrong := differences(config, {**supported, "per_layer_config": None}):
        raise CheckpointError(f"not supported: {', '.join(wrong)}")


def _activation(config: Config, key: str, default: str = "gelu") -> Activation:
    """Return the activation that a key names; refuse other names."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"not supported: {key} {name!r}; these are: {supported}")
    return ACTIVATIONS[name]


def _behind_pad(base: EncoderConfig, pad: int) -> EncoderConfig:
    """Return the same sizes, with positions from the row behind the padding token's on."""
    return replace(base, max_tokens=base.max_tokens - pad - 1, position_offset=pad + 1, pad=pad)


def _nomic_hub_rope(config: Config) -> Rope:
    """Read NomicBERT's rotary angles in the hub's spelling, which has no other keys."""
    _only(config, rope_parameters=None, rope_scaling=None)
    return Rope(theta=_number(config, "rotary_emb_base", above=1))


def _single_rope(config: Config, theta: float) -> Rope:
    """Read the rotary angles of all layers in transformers' spelling: the older name wins."""
    stated = _stated(config, "rope_scaling") or _stated(config, "rope_parameters") or {}
    return _rope(config, stated, config.get("rope_theta", theta))


def _gte_rope(config: Config) -> Rope:
    """Read GTE's rotary angles; "ntk" is its own code's, which transformers does not know."""
    stated = _stated(config, "rope_scaling") or {}
    if stated.get("type") == "ntk":
        _only(config, rope_parameters=None)
        _only(stated, **dict.fromkeys(stated.keys() - OF_NTK))
        theta = _number(config, "rope_theta", above=1)
        return Ntk(theta=theta, factor=_number(stated, "factor", above=1))
    if config["model_type"] == GTE_OF_HUB:
        _only(config, rope_parameters=None, rope_scaling=None)
        return Rope(theta=_number(config, "rope_theta", above=1))
    return _single_rope(config, THETA_OF_GTE)


def _modernbert_ropes(config: Config) -> dict[str, Rope]:
    """Read ModernBERT's rotary angles by kind of layer; the older name overrides the newer."""
    thetas = {
        EVERYWHERE: config.get("global_rope_theta", THETA_EVERYWHERE),
        LOCAL: config.get("local_rope_theta", THETA_LOCAL),
    }
    stated, over = _stated(config, "rope_parameters"), _stated(config, "rope_scaling")
    if stated is None:
        stated = {kind: {"rope_type": "default"} for kind in thetas}
    if others := stated.keys() - thetas.keys():
        named = ", ".join(sorted(others))
        raise CheckpointError(f"not supported: rope_parameters for other layer_types: {named}")
    ropes = {kind: _stated(stated, kind) or {} for kind in thetas}
    if over is not None:
        ropes = {kind: {**stated[kind], **over} for kind in thetas}
    for rope in ropes.values():
        _only(rope, truncate=None)  # of one kind of layer, where transformers does not look for it
    return {kind: _rope(config, ropes[kind], thetas[kind]) for kind in thetas}


def _stated(config: Config, key: str) -> Config | None:
    """Return the dictionary under a key; None where there is none."""
    stated = config.get(key)
    if stated is not None and not isinstance(stated, Mapping):
        raise CheckpointError(f"not supported: {key} {stated!r}")
    return stated


def _rope(config: Config, stated: Config, theta: object) -> Rope:
    """Read rotary angles as transformers computes them.

    Args:
        stated: the dictionary that describes them.
        theta: their base, where it gives none.
    """
    head = config.get("head_dim")
    if head is not None and head * config["num_attention_heads"] != config["hidden_size"]:
        raise CheckpointError(f"not supported: head_dim {head!r}")
    kind, share = _kind_of_rope(stated), config.get("partial_rotary_factor")
    default = {"rope_theta": theta, "partial_rotary_factor": 1 if share is None else share}
    given = {**default, **stated}
    base = _number(given, "rope_theta", above=1)
    if kind == "proportional":
        part = _number(given, "partial_rotary_factor", most=1)
        return Proportional(
            theta=base, factor=_number({"factor": 1, **given}, "factor"), share=part
        )
    _only(given, partial_rotary_factor=1)  # of other kinds these families turn all channels or fail
    if kind == "linear":
        return Linear(theta=base, factor=_number(given, "factor"))
    if kind == "yarn":
        return _yarn(config, given, base)
    if kind == "llama3":
        low, high = _number(given, "low_freq_factor"), _number(given, "high_freq_factor")
        _number({"high_freq_factor": high}, "high_freq_factor", above=low)
        factor, trained = _number(given, "factor"), _trained(config, given)
        return Llama3(theta=base, factor=factor, trained=trained, low=low, high=high)
    if kind == "dynamic":  # stretches only what is longer than the table of positions
        _number(given, "factor")
    return Rope(theta=base)


def _kind_of_rope(stated: Config) -> str:
    """Return the kind of the angles; refuse keys that it would not read."""
    kind = stated.get("rope_type", stated.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPES:
        raise CheckpointError(f"not supported: rope_type {kind!r}; these are: {', '.join(ROPES)}")
    if stated.get("type", kind) != kind:
        both = f"rope_type {kind!r}, which transformers follows, and type {stated['type']!r}"
        raise CheckpointError(f"not supported: {both}; say which holds as rope_type")
    _only(stated, **dict.fromkeys(stated.keys() - OF_ALL_ROPES - ROPES[kind]))
    return kind


def _yarn(config: Config, given: Config, theta: float) -> Yarn:
    """Read YaRN's angles; their amplitude follows from the factor where it is not given."""
    trained, whole = _trained(config, given), given.get("truncate", True)
    if given["factor"] is None:
        given = {**given, "factor": config["max_position_embeddings"] / trained}
    if not isinstance(whole, bool):
        raise CheckpointError(f"not supported: truncate {whole!r}")
    keys = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    some = {key: _number(given, key) for key in keys if given.get(key) is not None}
    factor = _number(given, "factor")
    amplitude = _amplitude(factor)
    if {"mscale", "mscale_all_dim"} <= some.keys():
        amplitude = _amplitude(factor, some["mscale"]) / _amplitude(factor, some["mscale_all_dim"])
    return Yarn(
        theta=theta,
        amplitude=some.get("attention_factor", amplitude),
        factor=factor,
        trained=trained,
        fast=some.get("beta_fast", 32.0),
        slow=some.get("beta_slow", 1.0),
        whole=whole,
    )


def _amplitude(factor: float, share: float = 1.0) -> float:
    """Return what YaRN multiplies queries and keys by when a factor stretches positions."""
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


def _trained(config: Config, given: Config) -> float:
    """Return the tokens of the longest sequence before stretching."""
    key = "original_max_position_embeddings"
    trained = _number({key: config["max_position_embeddings"], **given}, key)
    if config.get(key) is not None:  # which of the two counts differs between families
        _only(config, **{key: trained})
    return trained


def _number(given: Config, key: str, *, above: float = 0, most: float = MOST) -> float:
    """Return a finite number within its limits; refuse others."""
    number = given[key]
    if type(number) not in (int, float) or not above < number <= most:
        raise CheckpointError(f"not supported: {key} {number!r}")
    return float(number)
