"""Qwen3, a decoder of which only the token vectors are wanted, or the next token's score."""

from dataclasses import replace

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import llama
from model.families.family import CAUSAL_LM, Family, HeadRecipe, TinyModel
from model.families.fields import TINY_SIZES, Config, name_sizes, refuse_other_values

DEFAULT_HEAD_DIM = 128  # channels of a head where its config is silent
TENSOR_NAMES = {
    **llama.TENSOR_NAMES,
    "layers.{i}.query_norm": "layers.{i}.self_attn.q_norm",
    "layers.{i}.key_norm": "layers.{i}.self_attn.k_norm",
}
TINY_QWEN3 = {**TINY_SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14}


def read_config(config: Config) -> EncoderConfig:
    """Read Qwen3: Llama as it was, mostly causal, with norms of queries and keys."""
    refuse_other_values(config, use_sliding_window=False)
    everywhere = ["full_attention"] * config["num_hidden_layers"]
    refuse_other_values(
        config, **({} if config.get("layer_types") is None else {"layer_types": everywhere})
    )
    own = {"num_key_value_heads": config["num_key_value_heads"], "mlp_bias": False}
    base = llama.read_config({**config, **own, "head_dim": read_head_dim(config, DEFAULT_HEAD_DIM)})
    return replace(base, head_norm=True, causal=read_causal(config))


def read_head_dim(config: Config, default: int) -> int:
    """Read the channels of a head; null is none to transformers' class, which does not load it."""
    head: int | None = config.get("head_dim", default)
    if head is None:
        raise CheckpointError("not supported: head_dim null")
    return head


def read_causal(config: Config) -> bool:
    """Read whether tokens look back alone; of null transformers' kernels differ."""
    causal = config.get("is_causal", True)
    if not isinstance(causal, bool):
        raise CheckpointError(f"not supported: is_causal {causal!r}")
    return causal


FAMILY = Family(
    name="qwen3",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("model.",),
    tiny_model=TinyModel("Qwen3", TINY_QWEN3),
    defaults=name_sizes(
        *(151936, 4096, 32, 32, 22016, 32768), num_key_value_heads=32, rms_norm_eps=1e-6
    ),
    head_recipes={CAUSAL_LM: HeadRecipe("lm_head")},
    tokenizer_class="Qwen2Tokenizer",
)
