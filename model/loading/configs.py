"""What a config.json of each family means.

A reader refuses by name whatever the encoder would not compute exactly; a key that decides about
the arithmetic is never guessed.
"""

from dataclasses import replace
from typing import Any

from model.config import LINEARS, Activation, EncoderConfig
from model.errors import CheckpointError
from model.loading.ropes import Config, number, only, read_rope, read_stated, single_rope
from model.positions import Ntk, Rope

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
    only(config, embedding_size=config["hidden_size"])  # transformers' BERT would not read it
    return electra({**config, "embedding_size": config["hidden_size"]})


def electra(config: Config) -> EncoderConfig:
    """Read ELECTRA: BERT whose embeddings have a width of their own."""
    only(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    return EncoderConfig(
        **read_sizes(config),
        embedding_width=config["embedding_size"],
        types=config["type_vocab_size"],
        activation=read_activation(config, "hidden_act"),
    )


def ernie(config: Config) -> EncoderConfig:
    """Read ERNIE: BERT with a table of pretraining tasks, of which texts have the first."""
    kinds = config["task_type_vocab_size"] if config.get("use_task_id", False) else 0
    return replace(bert(config), kinds=kinds)


def albert(config: Config) -> EncoderConfig:
    """Read ALBERT: ELECTRA all of whose layers are one."""
    only(config, num_hidden_groups=1, inner_group_num=1)
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
    only(config, **{name: config[key] for name, key in own.items()})
    sizes = read_sizes(
        {**config, "layer_norm_eps": NORM_EPS_OF_DISTILBERT},
        width="dim",
        layers="n_layers",
        heads="n_heads",
        feed_forward="hidden_dim",
    )
    activation = read_activation(config, "activation")
    return EncoderConfig(**sizes, embedding_width=sizes["width"], activation=activation)


def mpnet(config: Config) -> EncoderConfig:
    """Read MPNet: RoBERTa without token types, with a learned bias of each distance."""
    base = _behind_pad(bert({**config, "type_vocab_size": 0}), PAD_OF_MPNET)
    return replace(base, buckets=config["relative_attention_num_buckets"])


def nomic(config: Config) -> EncoderConfig:
    """Read NomicBERT, in the hub's spelling (n_embd ..) or transformers' (hidden_size ..)."""
    hub = "n_embd" in config
    only(
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
    sizes = read_sizes(config, **(KEYS_OF_NOMIC_HUB if hub else {}))
    rope = _nomic_hub_rope(config) if hub else _rope(config, THETA_OF_NOMIC)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        biases=(),
        activation=read_activation(config, "hidden_act", "silu"),
        gated=True,
        ropes=(rope,) * sizes["layers"],
    )


def gte(config: Config) -> EncoderConfig:
    """Read GTE, in transformers' spelling ("gte") or the hub's ("new"): gates without biases."""
    only(
        config,
        position_embedding_type="rope",
        layer_norm_type="layer_norm",
        logn_attention_scale=False,
        pack_qkv=True,
    )
    sizes = read_sizes(config)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        biases=tuple(name for name in LINEARS if name not in ("gate", "up")),
        activation=read_activation(config, "hidden_act"),
        gated=True,
        ropes=(_gte_rope(config),) * sizes["layers"],
    )


def jina(config: Config) -> EncoderConfig:
    """Read Jina Embeddings v3, in the hub's spelling (rotary_emb_base) or transformers'.

    It is BERT with rotary positions; of its adapters see tasks.py.
    """
    hub = "rotary_emb_base" in config and config.get("rope_parameters") is None
    only(config, position_embedding_type="rotary", **({} if hub else {"lora_adaptations": None}))
    sizes = read_sizes(config)
    rope = _jina_hub_rope(config) if hub else _rope(config, THETA_OF_JINA)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        activation=read_activation(config, "hidden_act"),
        ropes=(rope,) * sizes["layers"],
    )


def modernbert(config: Config) -> EncoderConfig:
    """Read ModernBERT: pre-norm and rotary; most layers look no farther than a window."""
    window = config["local_attention"] // 2
    only(config, attention_bias=False, mlp_bias=False, norm_bias=False, sliding_window=window)
    every = config.get("global_attn_every_n_layers", LOCAL_EVERY)
    kinds = config.get("layer_types") or [
        LOCAL if i % every else EVERYWHERE for i in range(config["num_hidden_layers"])
    ]
    unknown = set(kinds) - {EVERYWHERE, LOCAL}
    if unknown:
        raise CheckpointError(f"not supported: layer_types {sorted(unknown)}")
    ropes = _modernbert_ropes(config)
    return EncoderConfig(
        **read_sizes(config, norm_eps="norm_eps"),
        embedding_width=config["hidden_size"],
        positions="rotary",
        pre_norm=True,
        biases=(),
        norm_bias=False,
        activation=read_activation(config, "hidden_activation"),
        gated=True,
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(window if kind == LOCAL else None for kind in kinds),
    )


def read_sizes(config: Config, **keys: str) -> dict[str, Any]:
    """Return the sizes, by KEYS except for those that the family names differently."""
    return {size: config[key] for size, key in (KEYS | keys).items()}


def read_activation(config: Config, key: str, default: str = "gelu") -> Activation:
    """Return the activation that a key names; refuse other names."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"not supported: {key} {name!r}; these are: {supported}")
    return ACTIVATIONS[name]


def _behind_pad(base: EncoderConfig, pad: int) -> EncoderConfig:
    """Return the same sizes, with positions from the row behind the padding token's on."""
    return replace(base, max_tokens=base.max_tokens - pad - 1, position_offset=pad + 1, pad=pad)


def _rope(config: Config, theta: float) -> Rope:
    """Read the rotary angles of all layers, of heads that divide the width."""
    _divided(config)
    return single_rope(config, theta)


def _divided(config: Config) -> None:
    """Refuse heads of another size, which these families' code would not compute."""
    head = config.get("head_dim")
    if head is not None and head * config["num_attention_heads"] != config["hidden_size"]:
        raise CheckpointError(f"not supported: head_dim {head!r}")


def _nomic_hub_rope(config: Config) -> Rope:
    """Read NomicBERT's rotary angles in the hub's spelling, which has no other keys."""
    only(config, rope_parameters=None, rope_scaling=None)
    return Rope(theta=number(config, "rotary_emb_base", above=1))


def _jina_hub_rope(config: Config) -> Rope:
    """Read Jina v3's rotary angles in the hub's spelling, whose code has other choices too."""
    _divided(config)
    only(
        config,
        rope_scaling=None,
        rotary_emb_dim=config["hidden_size"] // config["num_attention_heads"],
        rotary_emb_scale_base=None,
        rotary_emb_interleaved=False,
        pad_vocab_size_multiple=1,
        truncate_dim=None,
    )
    if config.get("emb_pooler") is not None:
        only(config, emb_pooler="mean")
    return Rope(theta=number(config, "rotary_emb_base", above=1))


def _gte_rope(config: Config) -> Rope:
    """Read GTE's rotary angles; "ntk" is its own code's, which transformers does not know."""
    stated = read_stated(config, "rope_scaling") or {}
    if stated.get("type") == "ntk":
        only(config, rope_parameters=None)
        only(stated, **dict.fromkeys(stated.keys() - OF_NTK))
        theta = number(config, "rope_theta", above=1)
        return Ntk(theta=theta, factor=number(stated, "factor", above=1))
    if config["model_type"] == GTE_OF_HUB:
        only(config, rope_parameters=None, rope_scaling=None)
        return Rope(theta=number(config, "rope_theta", above=1))
    return _rope(config, THETA_OF_GTE)


def _modernbert_ropes(config: Config) -> dict[str, Rope]:
    """Read ModernBERT's rotary angles by kind of layer; the older name overrides the newer."""
    thetas = {
        EVERYWHERE: config.get("global_rope_theta", THETA_EVERYWHERE),
        LOCAL: config.get("local_rope_theta", THETA_LOCAL),
    }
    stated, over = read_stated(config, "rope_parameters"), read_stated(config, "rope_scaling")
    if stated is None:
        stated = {kind: {"rope_type": "default"} for kind in thetas}
    if others := stated.keys() - thetas.keys():
        named = ", ".join(sorted(others))
        raise CheckpointError(f"not supported: rope_parameters for other layer_types: {named}")
    ropes = {kind: read_stated(stated, kind) or {} for kind in thetas}
    if over is not None:
        ropes = {kind: {**stated[kind], **over} for kind in thetas}
    for rope in ropes.values():
        only(rope, truncate=None)  # of one kind of layer, where transformers does not look for it
    _divided(config)
    return {kind: read_rope(config, ropes[kind], thetas[kind]) for kind in thetas}
