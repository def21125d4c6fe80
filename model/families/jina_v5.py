"""Jina Embeddings v5: EuroBERT's layers (nano) or Qwen3's (small), with adapters of tasks."""

from model.config import EncoderConfig
from model.families import llama, qwen3
from model.families.family import Family
from model.families.fields import Config


def read(config: Config) -> EncoderConfig:
    """Read either, by the config's own word."""
    return qwen3.read(config) if config.get("is_decoder", True) else llama.read(config)


FAMILY = Family(
    name="jina_embeddings_v5",
    read=read,
    names=(llama.NAMES, qwen3.NAMES),
    prefixes=("model.",),
    tasks="task_names",
)
