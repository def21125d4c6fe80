"""Readers of config.json keys that several families have: sizes, activations, fixed values."""

import sys
from collections.abc import Mapping
from typing import Any

from model.config import Activation
from model.errors import CheckpointError

Config = Mapping[str, Any]  # what a config.json holds

# field of EncoderConfig -> key of config.json, in most families
SIZE_KEYS = {
    "family": "model_type",
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
    "max_tokens": "max_position_embeddings",
    "norm_eps": "layer_norm_eps",
}
# transformers' names -> ours; names of one function differ only in the order of its steps
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
LARGEST_FLOAT = sys.float_info.max  # finite


def name_sizes(*values: int, **more: Any) -> dict[str, Any]:
    """Return six sizes, vocabulary to max_tokens, under most families' keys, and more entries."""
    return dict(zip(tuple(SIZE_KEYS.values())[1:7], values, strict=True)) | more


TINY_SIZES = name_sizes(97, 48, 4, 3, 80, 40)  # of the tests' tiny models


def read_sizes(config: Config, **keys: str) -> dict[str, Any]:
    """Return an EncoderConfig's sizes; `keys` are a family's that differ from SIZE_KEYS."""
    return {size: config[key] for size, key in (SIZE_KEYS | keys).items()}


def read_activation(config: Config, key: str, default: str = "gelu") -> Activation:
    """Return the activation that a key names; refuse unknown names."""
    name = config.get(key, default)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"not supported: {key} {name!r}; these are: {supported}")
    return ACTIVATIONS[name]


def read_number(
    config: Config, key: str, *, above: float = 0, most: float = LARGEST_FLOAT
) -> float:
    """Return a key's finite number, more than `above` and at most `most`; refuse others."""
    number = config[key]
    if type(number) not in (int, float) or not above < number <= most:
        raise CheckpointError(f"not supported: {key} {number!r}")
    return float(number)


def refuse_other_values(config: Config, **supported: object) -> None:
    """Refuse keys present with other values than supported, and layers with sizes of their own."""
    if wrong := find_differences(config, {**supported, "per_layer_config": None}):
        raise CheckpointError(f"not supported: {', '.join(wrong)}")


def find_differences(config: Config, supported: Mapping[str, object]) -> list[str]:
    """Return "key value" for each key whose value is present and not the supported one."""
    keys = [key for key in supported if config.get(key, supported[key]) != supported[key]]
    return [f"{key} {config[key]!r}" for key in keys]
