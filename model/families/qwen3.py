"""Qwen3, a decoder of which only the token vectors are wanted, or the next token's score."""

from dataclasses import replace

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import llama
from model.families.family import NEXT, Family, Recipe, Tiny
from model.families.fields import TINY, Config, only, sizes

HEAD = 128  # channels of a head where its config is silent
NAMES = {
    **llama.NAMES,
    "layers.{i}.query_norm": "layers.{i}.self_attn.q_norm",
    "layers.{i}.key_norm": "layers.{i}.self_attn.k_norm",
}
SMALL = {**TINY, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 14}


def read(config: Config) -> EncoderConfig:
    """Read Qwen3: Llama as it was, mostly causal, with norms of queries and keys."""
    only(config, use_sliding_window=False)
    everywhere = ["full_attention"] * config["num_hidden_layers"]
    only(config, **({} if config.get("layer_types") is None else {"layer_types": everywhere}))
    own = {"num_key_value_heads": config["num_key_value_heads"], "mlp_bias": False}
    base = llama.read({**config, **own, "head_dim": read_head(config, HEAD)})
    return replace(base, head_norm=True, causal=read_causal(config))


def read_head(config: Config, default: int) -> int:
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
    read=read,
    names=(NAMES,),
    prefixes=("model.",),
    tiny=Tiny("Qwen3", SMALL),
    defaults=sizes(
        *(151936, 4096, 32, 32, 22016, 32768), num_key_value_heads=32, rms_norm_eps=1e-6
    ),
    heads={NEXT: Recipe("lm_head")},
    tokenizer="Qwen2Tokenizer",
)
