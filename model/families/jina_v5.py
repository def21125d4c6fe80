"""Jina Embeddings v5: EuroBERT's layers (nano) or Qwen3's (small), with adapters of tasks."""

from model.config import EncoderConfig
from model.families import llama, qwen3
from model.families.family import Family
from model.families.fields import Config


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of Qwen3 for a decoder, else of EuroBERT."""
    return (
        qwen3.read_config(config) if config.get("is_decoder", True) else llama.read_config(config)
    )


FAMILY = Family(
    name="jina_embeddings_v5",
    read_config=read_config,
    tensor_names=(llama.TENSOR_NAMES, qwen3.TENSOR_NAMES),
    prefixes=("model.",),
    tasks_key="task_names",
)
