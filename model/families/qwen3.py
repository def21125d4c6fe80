"""Qwen3, a decoder that is read for its token vectors, or for the next token's logit."""

from dataclasses import replace

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import llama
from model.families.family import CAUSAL_LM, Family, HeadRecipe, TinyModel
from model.families.fields import TINY_SIZES, Config, name_sizes, refuse_other_values

DEFAULT_HEAD_DIM = 128  # channels of a head where config.json does not say
TENSOR_NAMES = {  # our names -> the checkpoint's
    **llama.TENSOR_NAMES,
    "layers.{i}.query_norm": "layers.{i}.self_attn.q_norm",
    "layers.{i}.key_norm": "layers.{i}.self_attn.k_norm",
}
TINY_QWEN3 = {**TINY_SIZES, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of Qwen3: Llama's, mostly causal, with query and key norms."""
    refuse_other_values(config, use_sliding_window=False)
    everywhere = ["full_attention"] * config["num_hidden_layers"]
    refuse_other_values(
        config, **({} if config.get("layer_types") is None else {"layer_types": everywhere})
    )
    own = {"num_key_value_heads": config["num_key_value_heads"], "mlp_bias": False}
    base = llama.read_config({**config, **own, "head_dim": read_head_dim(config, DEFAULT_HEAD_DIM)})
    return replace(base, head_norm=True, causal=read_causal(config))


def read_head_dim(config: Config, default: int) -> int:
    """Return the channels of a head; refuse null, which transformers does not load either."""
    head_dim: int | None = config.get("head_dim", default)
    if head_dim is None:
        raise CheckpointError("not supported: head_dim null")
    return head_dim


def read_causal(config: Config) -> bool:
    """Return whether attention is causal; refuse null, where transformers' kernels differ."""
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
