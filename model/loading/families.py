"""Checkpoint families: a reader of each one's config.json, and what its tensors are called.

A table of names has ours -> the checkpoint's, {i} the layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.loading import configs, deberta, decoders, jina
from model.loading.ropes import Config, only

Names = Mapping[str, str]

_TABLES = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
BERT = {
    **_TABLES,
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
JINA_BERT = {
    **{ours: theirs for ours, theirs in BERT.items() if ours != "layers.{i}.up"},
    "layers.{i}.gate_up": "encoder.layer.{i}.mlp.gated_layers",
    "layers.{i}.down": "encoder.layer.{i}.mlp.wo",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.mlp.layernorm",
}
ERNIE = {**BERT, "kinds": "embeddings.task_type_embeddings"}
ELECTRA = {**BERT, "project": "embeddings_project"}
_ALBERT = "encoder.albert_layer_groups.{i}.albert_layers.0"
ALBERT = {
    **_TABLES,
    "project": "encoder.embedding_hidden_mapping_in",
    "layers.{i}.query": f"{_ALBERT}.attention.query",
    "layers.{i}.key": f"{_ALBERT}.attention.key",
    "layers.{i}.value": f"{_ALBERT}.attention.value",
    "layers.{i}.output": f"{_ALBERT}.attention.dense",
    "layers.{i}.attention_norm": f"{_ALBERT}.attention.LayerNorm",
    "layers.{i}.up": f"{_ALBERT}.ffn",
    "layers.{i}.down": f"{_ALBERT}.ffn_output",
    "layers.{i}.feed_forward_norm": f"{_ALBERT}.full_layer_layer_norm",
}
DISTILBERT = {
    **_TABLES,
    "layers.{i}.query": "transformer.layer.{i}.attention.q_lin",
    "layers.{i}.key": "transformer.layer.{i}.attention.k_lin",
    "layers.{i}.value": "transformer.layer.{i}.attention.v_lin",
    "layers.{i}.output": "transformer.layer.{i}.attention.out_lin",
    "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "layers.{i}.up": "transformer.layer.{i}.ffn.lin1",
    "layers.{i}.down": "transformer.layer.{i}.ffn.lin2",
    "layers.{i}.feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
}
MPNET = {
    **BERT,
    "distances": "encoder.relative_attention_bias",
    "layers.{i}.query": "encoder.layer.{i}.attention.attn.q",
    "layers.{i}.key": "encoder.layer.{i}.attention.attn.k",
    "layers.{i}.value": "encoder.layer.{i}.attention.attn.v",
    "layers.{i}.output": "encoder.layer.{i}.attention.attn.o",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.LayerNorm",
}
DEBERTA = {
    **BERT,
    "relative": "encoder.rel_embeddings",
    "relative_norm": "encoder.LayerNorm",
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query_proj",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key_proj",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value_proj",
    "layers.{i}.relative_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "layers.{i}.relative_query": "encoder.layer.{i}.attention.self.pos_query_proj",
}
NOMIC_HUB = {
    **_TABLES,
    "norm": "emb_ln",
    "layers.{i}.qkv": "encoder.layers.{i}.attn.Wqkv",
    "layers.{i}.output": "encoder.layers.{i}.attn.out_proj",
    "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
    "layers.{i}.gate": "encoder.layers.{i}.mlp.fc12",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc11",
    "layers.{i}.down": "encoder.layers.{i}.mlp.fc2",
    "layers.{i}.feed_forward_norm": "encoder.layers.{i}.norm2",
}
NOMIC = {
    **_TABLES,
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
GTE_HUB = {
    **_TABLES,
    "layers.{i}.qkv": "encoder.layer.{i}.attention.qkv_proj",
    "layers.{i}.output": "encoder.layer.{i}.attention.o_proj",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attn_ln",
    "layers.{i}.up_gate": "encoder.layer.{i}.mlp.up_gate_proj",
    "layers.{i}.down": "encoder.layer.{i}.mlp.down_proj",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.mlp_ln",
}
GTE = NOMIC
JINA_HUB = {
    **_TABLES,
    "norm": "emb_ln",
    "layers.{i}.qkv": "encoder.layers.{i}.mixer.Wqkv",
    "layers.{i}.output": "encoder.layers.{i}.mixer.out_proj",
    "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc1",
    "layers.{i}.down": "encoder.layers.{i}.mlp.fc2",
    "layers.{i}.feed_forward_norm": "encoder.layers.{i}.norm2",
}
JINA = {**NOMIC, "layers.{i}.up": "layers.{i}.mlp.fc1", "layers.{i}.down": "layers.{i}.mlp.fc2"}
MODERNBERT = {
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
LLAMA = {
    "word": "embed_tokens",
    "layers.{i}.query": "layers.{i}.self_attn.q_proj",
    "layers.{i}.key": "layers.{i}.self_attn.k_proj",
    "layers.{i}.value": "layers.{i}.self_attn.v_proj",
    "layers.{i}.output": "layers.{i}.self_attn.o_proj",
    "layers.{i}.attention_norm": "layers.{i}.input_layernorm",
    "layers.{i}.gate": "layers.{i}.mlp.gate_proj",
    "layers.{i}.up": "layers.{i}.mlp.up_proj",
    "layers.{i}.down": "layers.{i}.mlp.down_proj",
    "layers.{i}.feed_forward_norm": "layers.{i}.post_attention_layernorm",
    "final_norm": "norm",
}
QWEN3 = {
    **LLAMA,
    "layers.{i}.query_norm": "layers.{i}.self_attn.q_norm",
    "layers.{i}.key_norm": "layers.{i}.self_attn.k_norm",
}
GEMMA3 = {
    **QWEN3,
    "layers.{i}.output_norm": "layers.{i}.post_attention_layernorm",
    "layers.{i}.feed_forward_norm": "layers.{i}.pre_feedforward_layernorm",
    "layers.{i}.down_norm": "layers.{i}.post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Family:
    """How one model_type is read.

    Args:
        names: a table for each layout of its files, the newest last.
        prefixes: that a checkpoint with a task head puts before every name.
        spare: how names begin that many files have, read or not.
        tasks: the key of config.json that names tasks with adapters in the checkpoint, if any.
    """

    read: Callable[[Config], EncoderConfig]
    names: tuple[Names, ...]
    prefixes: tuple[str, ...]
    spare: tuple[str, ...] = ()
    tasks: str = ""


FAMILIES = {
    "bert": Family(jina.bert, (JINA_BERT, BERT), ("bert.",)),
    "ernie": Family(configs.ernie, (ERNIE,), ("ernie.",), ("embeddings.task_type_",)),
    "electra": Family(configs.electra, (ELECTRA,), ("electra.",)),
    "albert": Family(configs.albert, (ALBERT,), ("albert.",)),
    "roberta": Family(configs.roberta, (BERT,), ("roberta.",)),
    "xlm-roberta": Family(configs.roberta, (BERT,), ("roberta.",)),
    "camembert": Family(configs.roberta, (BERT,), ("roberta.",)),
    "distilbert": Family(configs.distilbert, (DISTILBERT,), ("distilbert.",)),
    "mpnet": Family(configs.mpnet, (MPNET,), ("mpnet.",)),
    "deberta-v2": Family(deberta.read, (DEBERTA,), ("deberta.",), ("embeddings.position_",)),
    "nomic_bert": Family(configs.nomic, (NOMIC_HUB, NOMIC), ("nomic_bert.", "bert.")),
    # the hub's name, of Alibaba-NLP/new-impl, and transformers'
    **dict.fromkeys(("new", "gte"), Family(configs.gte, (GTE_HUB, GTE), ("new.", "gte."))),
    "jina_embeddings_v3": Family(
        configs.jina, (JINA_HUB, JINA), ("roberta.",), tasks="lora_adaptations"
    ),
    "modernbert": Family(configs.modernbert, (MODERNBERT,), ("model.",)),
    # transformers' name, and that of NVIDIA's own code
    **dict.fromkeys(("eurobert", "llama_bidirec"), Family(decoders.llama, (LLAMA,), ("model.",))),
    "qwen3": Family(decoders.qwen3, (QWEN3,), ("model.",)),
    "jina_embeddings_v5": Family(jina.v5, (LLAMA, QWEN3), ("model.",), tasks="task_names"),
    "gemma3_text": Family(decoders.gemma3, (GEMMA3,), ("model.",)),
}


def _sizes(*sizes: int, **more: float) -> dict[str, Any]:
    """Name the sizes of most families, in the order of configs.KEYS, and more."""
    return dict(zip(tuple(configs.KEYS.values())[1:7], sizes, strict=True)) | more


# what transformers' classes have where a config.json is silent
_BERT = _sizes(30522, 768, 12, 12, 3072, 512, layer_norm_eps=1e-12, type_vocab_size=2)
DEFAULTS: Mapping[str, Config] = {
    "bert": _BERT,
    "ernie": _BERT | {"task_type_vocab_size": 3},
    "electra": _BERT | _sizes(30522, 256, 12, 4, 1024, 512, embedding_size=128),
    "albert": _BERT
    | _sizes(30000, 4096, 12, 64, 16384, 512, embedding_size=128)
    | {"hidden_act": "gelu_new"},
    "roberta": _BERT | {"vocab_size": 50265, "pad_token_id": 1},
    "xlm-roberta": _BERT | {"pad_token_id": 1},
    "camembert": _BERT | {"pad_token_id": 1},
    "distilbert": {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
    },
    "mpnet": _BERT | {"vocab_size": 30527, "relative_attention_num_buckets": 32},
    "deberta-v2": _sizes(128100, 1536, 24, 24, 6144, 512, layer_norm_eps=1e-7, type_vocab_size=0),
    "nomic_bert": _BERT | {"vocab_size": 30528, "max_position_embeddings": 2048},
    "gte": _BERT | _sizes(250048, 768, 12, 12, 3072, 8192, type_vocab_size=1),
    "jina_embeddings_v3": _sizes(
        250002, 1024, 24, 16, 4096, 8194, layer_norm_eps=1e-5, type_vocab_size=1
    ),
    "modernbert": _sizes(50368, 768, 22, 12, 1152, 8192, norm_eps=1e-5, local_attention=128),
    "eurobert": _sizes(128256, 768, 12, 12, 3072, 8192, rms_norm_eps=1e-5),
    "qwen3": _sizes(151936, 4096, 32, 32, 22016, 32768, num_key_value_heads=32, rms_norm_eps=1e-6),
    "gemma3_text": _sizes(262208, 2304, 26, 8, 9216, 131072, rms_norm_eps=1e-6)
    | {"num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096},
}


def read_config(config: Any) -> tuple[EncoderConfig, Family]:
    """Read a config.json as the encoder's sizes, and the family it names.

    Raises:
        CheckpointError: the family is unknown, a key is missing, or a value is not supported.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError("config.json is not a JSON object")
    _check_plain(config)
    config = jina.named(config)
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model_type {kind!r} is not supported; these are: {supported}")
    only(config, transformers_weights=None, fusion_config=None)
    try:
        read = family.read({**DEFAULTS.get(str(kind), {}), **config})
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from error
    if config.get("is_causal") not in (None, read.causal):  # transformers' kernels differ
        raise CheckpointError(f"not supported: is_causal {config['is_causal']!r}")
    return read, family


def tasked(config: Mapping[str, Any]) -> bool:
    """Tell whether a config.json names tasks with adapters in its checkpoint."""
    family = FAMILIES.get(str(jina.named(config).get("model_type")))
    return family is not None and bool(family.tasks and config.get(family.tasks))


def _check_plain(config: Mapping[str, Any]) -> None:
    """Refuse weights that are quantised, or that transformers would quantise, by the method."""
    for key in ("quantization_config", "compression_config"):
        if (how := config.get(key)) is None:
            continue
        said = how if isinstance(how, Mapping) else {}
        # bitsandbytes did not say its name at first
        unnamed = "bitsandbytes" if said.keys() & {"load_in_8bit", "load_in_4bit"} else "unnamed"
        method = said.get("quant_method", unnamed)
        advice = "serve the weights before it"
        raise CheckpointError(f"{key}: not supported: the method {method}; {advice}")
