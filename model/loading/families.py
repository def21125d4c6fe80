"""Checkpoint families: a reader of each one's config.json, and what its tensors are called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.loading import configs, names
from model.loading.configs import Config
from model.loading.names import Names


@dataclass(frozen=True, slots=True)
class Family:
    """How one model_type is read.

    Args:
        names: a table for each layout of its files, the newest last.
        prefixes: that a checkpoint with a head puts before every name.
    """

    read: Callable[[Config], EncoderConfig]
    names: tuple[Names, ...]
    prefixes: tuple[str, ...]


FAMILIES = {
    "bert": Family(configs.bert, (names.BERT,), ("bert.",)),
    "electra": Family(configs.electra, (names.ELECTRA,), ("electra.",)),
    "roberta": Family(configs.roberta, (names.BERT,), ("roberta.",)),
    "xlm-roberta": Family(configs.roberta, (names.BERT,), ("roberta.",)),
    "camembert": Family(configs.roberta, (names.BERT,), ("roberta.",)),
    "distilbert": Family(configs.distilbert, (names.DISTILBERT,), ("distilbert.",)),
    "mpnet": Family(configs.mpnet, (names.MPNET,), ("mpnet.",)),
    "nomic_bert": Family(configs.nomic, (names.NOMIC_HUB, names.NOMIC), ("nomic_bert.", "bert.")),
    "modernbert": Family(configs.modernbert, (names.MODERNBERT,), ("model.",)),
}


def read_config(config: Any) -> tuple[EncoderConfig, Family]:
    """A config.json as the encoder's sizes, and the family it names.

    Raises:
        CheckpointError: the family is unknown, a key is missing, or a value is not supported.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError("config.json is not a JSON object")
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"model_type {kind!r} is not supported; these are: {supported}")
    try:
        return family.read(config), family
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from error
