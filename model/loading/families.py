"""Checkpoint families: what a config.json of each means, and what its tensors are called.

A family is a reader of its config and one or more tables of names, the newest layout last. A
reader refuses by name whatever the encoder would not compute exactly; a key that decides about
the arithmetic is never guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from model.config import Activation, EncoderConfig
from model.errors import CheckpointError

Given = Mapping[str, Any]
Names = Mapping[str, str]  # our name -> the checkpoint's; {i} is the layer

NORM_EPS_OF_DISTILBERT = 1e-12  # written into its code, not its config
PAD_OF_MPNET = 1  # likewise
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


@dataclass(frozen=True, slots=True)
class Family:
    """How one model_type is read.

    Args:
        prefixes: that a checkpoint with a head puts before every name.
    """

    read: Callable[[Given], EncoderConfig]
    names: tuple[Names, ...]
    prefixes: tuple[str, ...]


def read_config(given: Given) -> tuple[EncoderConfig, Family]:
    """A config.json as the encoder's sizes, and the family it names.

    Raises:
        CheckpointError: the family is unknown, a key is missing, or a value is not supported.
    """
    if not isinstance(given, Mapping):
        raise CheckpointError("config.json is not a JSON object")
    kind = given.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model_type {kind!r} is not supported; these are: {known}")
    try:
        return family.read(given), family
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from error


def _only(given: Given, **wanted: object) -> None:
    """Refuse the keys that are there and differ; name them all."""
    wrong = [
        f"{key} {given[key]!r}" for key in wanted if given.get(key, wanted[key]) != wanted[key]
    ]
    if wrong:
        raise CheckpointError(f"not supported: {', '.join(wrong)}")


def _activation(given: Given, key: str, default: str = "gelu") -> Activation:
    """The activation that a key names; other names are refused."""
    name = given.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"not supported: {key} {name!r}; these are: {known}")
    return ACTIVATIONS[name]


def _bert(given: Given) -> EncoderConfig:
    _only(
        given,
        position_embedding_type="absolute",
        is_decoder=False,
        add_cross_attention=False,
    )
    return EncoderConfig(
        family=given["model_type"],
        vocabulary=given["vocab_size"],
        width=given["hidden_size"],
        layers=given["num_hidden_layers"],
        heads=given["num_attention_heads"],
        feed_forward=given["intermediate_size"],
        max_tokens=given["max_position_embeddings"],
        norm_eps=given["layer_norm_eps"],
        embedding_width=given.get("embedding_size", given["hidden_size"]),
        types=given["type_vocab_size"],
        activation=_activation(given, "hidden_act"),
    )


def _roberta(given: Given) -> EncoderConfig:
    """BERT whose positions begin behind the padding token's row."""
    base, pad = _bert(given), given["pad_token_id"]
    return replace(base, max_tokens=base.max_tokens - pad - 1, position_offset=pad + 1, pad=pad)


def _distilbert(given: Given) -> EncoderConfig:
    return EncoderConfig(
        family=given["model_type"],
        vocabulary=given["vocab_size"],
        width=given["dim"],
        layers=given["n_layers"],
        heads=given["n_heads"],
        feed_forward=given["hidden_dim"],
        max_tokens=given["max_position_embeddings"],
        norm_eps=NORM_EPS_OF_DISTILBERT,
        embedding_width=given["dim"],
        activation=_activation(given, "activation"),
    )


def _mpnet(given: Given) -> EncoderConfig:
    base = _bert({**given, "type_vocab_size": 0})
    return replace(
        base,
        max_tokens=base.max_tokens - PAD_OF_MPNET - 1,
        position_offset=PAD_OF_MPNET + 1,
        pad=PAD_OF_MPNET,
        buckets=given["relative_attention_num_buckets"],
    )


def _nomic(given: Given) -> EncoderConfig:
    """NomicBERT, in the hub's spelling (n_embd ..) or transformers' (hidden_size ..)."""
    hub = "n_embd" in given
    _only(
        given,
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
    layers = given["n_layer" if hub else "num_hidden_layers"]
    theta = (
        given["rotary_emb_base"] if hub else _theta(given.get("rope_parameters"), THETA_OF_NOMIC)
    )
    width = given["n_embd" if hub else "hidden_size"]
    return EncoderConfig(
        family="nomic_bert",
        vocabulary=given["vocab_size"],
        width=width,
        layers=layers,
        heads=given["n_head" if hub else "num_attention_heads"],
        feed_forward=given["n_inner" if hub else "intermediate_size"],
        max_tokens=given["n_positions" if hub else "max_position_embeddings"],
        norm_eps=given["layer_norm_epsilon" if hub else "layer_norm_eps"],
        embedding_width=width,
        positions="rotary",
        types=given["type_vocab_size"],
        biases=False,
        activation=_activation(given, "hidden_act", "silu"),
        gated=True,
        thetas=(float(theta),) * layers,
    )


def _modernbert(given: Given) -> EncoderConfig:
    _only(
        given,
        attention_bias=False,
        mlp_bias=False,
        norm_bias=False,
    )
    layers = given["num_hidden_layers"]
    every = given.get("global_attn_every_n_layers", LOCAL_EVERY)
    kinds = given.get("layer_types") or [
        "sliding_attention" if i % every else "full_attention" for i in range(layers)
    ]
    unknown = set(kinds) - {"sliding_attention", "full_attention"}
    if unknown:
        raise CheckpointError(f"not supported: layer_types {sorted(unknown)}")
    ropes = given.get("rope_parameters") or {}
    everywhere = given.get("global_rope_theta", THETA_EVERYWHERE)
    local = given.get("local_rope_theta", THETA_LOCAL)
    thetas = {
        "full_attention": _theta(ropes.get("full_attention"), everywhere),
        "sliding_attention": _theta(ropes.get("sliding_attention"), local),
    }
    window = given["local_attention"] // 2
    return EncoderConfig(
        family=given["model_type"],
        vocabulary=given["vocab_size"],
        width=given["hidden_size"],
        layers=layers,
        heads=given["num_attention_heads"],
        feed_forward=given["intermediate_size"],
        max_tokens=given["max_position_embeddings"],
        norm_eps=given["norm_eps"],
        embedding_width=given["hidden_size"],
        positions="rotary",
        pre_norm=True,
        biases=False,
        norm_bias=False,
        activation=_activation(given, "hidden_activation"),
        gated=True,
        thetas=tuple(thetas[kind] for kind in kinds),
        windows=tuple(window if kind == "sliding_attention" else None for kind in kinds),
    )


def _theta(rope: Given | None, default: float) -> float:
    """The base of rotary angles; scaled kinds are refused."""
    rope = rope or {}
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"not supported: rope_type {rope['rope_type']!r}")
    return float(rope.get("rope_theta", default))


_BERT_LAYER = {
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
_BERT_TABLES = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
_BERT = {**_BERT_TABLES, **_BERT_LAYER}
_ELECTRA = {**_BERT, "project": "embeddings_project"}
_DISTILBERT = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "layers.{i}.query": "transformer.layer.{i}.attention.q_lin",
    "layers.{i}.key": "transformer.layer.{i}.attention.k_lin",
    "layers.{i}.value": "transformer.layer.{i}.attention.v_lin",
    "layers.{i}.output": "transformer.layer.{i}.attention.out_lin",
    "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "layers.{i}.up": "transformer.layer.{i}.ffn.lin1",
    "layers.{i}.down": "transformer.layer.{i}.ffn.lin2",
    "layers.{i}.feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
}
_MPNET = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "distances": "encoder.relative_attention_bias",
    "layers.{i}.query": "encoder.layer.{i}.attention.attn.q",
    "layers.{i}.key": "encoder.layer.{i}.attention.attn.k",
    "layers.{i}.value": "encoder.layer.{i}.attention.attn.v",
    "layers.{i}.output": "encoder.layer.{i}.attention.attn.o",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
_NOMIC_HUB = {
    "word": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "emb_ln",
    "layers.{i}.qkv": "encoder.layers.{i}.attn.Wqkv",
    "layers.{i}.output": "encoder.layers.{i}.attn.out_proj",
    "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
    "layers.{i}.gate": "encoder.layers.{i}.mlp.fc12",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc11",
    "layers.{i}.down": "encoder.layers.{i}.mlp.fc2",
    "layers.{i}.feed_forward_norm": "encoder.layers.{i}.norm2",
}
_NOMIC = {
    "word": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "layers.{i}.query": "layers.{i}.self_attn.q_proj",
    "layers.{i}.key": "layers.{i}.self_attn.k_proj",
    "layers.{i}.value": "layers.{i}.self_attn.v_proj",
    "layers.{i}.output": "layers.{i}.self_attn.o_proj",
    "layers.{i}.attention_norm": "layers.{i}.post_attention_layernorm",
    "layers.{i}.gate": "layers.{i}.mlp.gate_proj",
    "layers.{i}.up": "layers.{i}.mlp.up_proj",
    "layers.{i}.down": "layers.{i}.mlp.down_proj",
    "layers.{i}.feed_forward_norm": "layers.{i}.post_mlp_layernorm",
}
_MODERNBERT = {
    "word": "embeddings.tok_embeddings",
    "norm": "embeddings.norm",
    "layers.{i}.qkv": "layers.{i}.attn.Wqkv",
    "layers.{i}.output": "layers.{i}.attn.Wo",
    "layers.{i}.attention_norm": "layers.{i}.attn_norm",
    "layers.{i}.gate_up": "layers.{i}.mlp.Wi",
    "layers.{i}.down": "layers.{i}.mlp.Wo",
    "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
    "final_norm": "final_norm",
}

FAMILIES: dict[str, Family] = {
    "bert": Family(_bert, (_BERT,), ("bert.",)),
    "electra": Family(_bert, (_ELECTRA,), ("electra.",)),
    "roberta": Family(_roberta, (_BERT,), ("roberta.",)),
    "xlm-roberta": Family(_roberta, (_BERT,), ("roberta.",)),
    "camembert": Family(_roberta, (_BERT,), ("roberta.",)),
    "distilbert": Family(_distilbert, (_DISTILBERT,), ("distilbert.",)),
    "mpnet": Family(_mpnet, (_MPNET,), ("mpnet.",)),
    "nomic_bert": Family(_nomic, (_NOMIC_HUB, _NOMIC), ("nomic_bert.", "bert.")),
    "modernbert": Family(_modernbert, (_MODERNBERT,), ("model.",)),
}
