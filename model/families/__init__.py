"""The families of checkpoints that are read, a file each; this is the list of them."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    ernie,
    gemma3,
    gte,
    jina_v2,
    jina_v3,
    jina_v5,
    llama,
    modernbert,
    mpnet,
    nomic,
    qwen3,
    roberta,
)
from model.families.family import Family
from model.families.fields import Config, refuse_other_values

FAMILIES = (
    bert.FAMILY,
    ernie.FAMILY,
    electra.FAMILY,
    albert.FAMILY,
    roberta.ROBERTA,
    roberta.XLM_ROBERTA,
    roberta.CAMEMBERT,
    distilbert.FAMILY,
    mpnet.FAMILY,
    deberta.FAMILY,
    nomic.FAMILY,
    gte.GTE,
    gte.NEW,
    jina_v2.FAMILY,
    jina_v3.FAMILY,
    jina_v5.FAMILY,
    modernbert.FAMILY,
    llama.EUROBERT,
    llama.NVIDIA,
    qwen3.FAMILY,
    gemma3.FAMILY,
)


def read_config_and_family(config: Any) -> tuple[EncoderConfig, Family]:
    """Read a config.json as the encoder's sizes, and the family that it is of.

    Raises:
        CheckpointError: the family is unknown, a key is missing, or a value is not supported.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError("config.json is not a JSON object")
    _refuse_quantised(config)
    if (family := find_family(config)) is None:
        kind, supported = config.get("model_type"), ", ".join(sorted({f.name for f in FAMILIES}))
        raise CheckpointError(f"model_type {kind!r} is not supported; these are: {supported}")
    refuse_other_values(config, transformers_weights=None, fusion_config=None)
    try:
        read = family.read_config({**family.defaults, **config})
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from error
    if config.get("is_causal") not in (None, read.causal):  # transformers' kernels differ
        raise CheckpointError(f"not supported: is_causal {config['is_causal']!r}")
    return read, family


def find_family(config: Config) -> Family | None:
    """Find the family of a config.json: one that claims it, else the one that it names."""
    claiming = (one for one in FAMILIES if one.claims and one.claims(config))
    named = (one for one in FAMILIES if not one.claims and one.name == config.get("model_type"))
    return next(chain(claiming, named), None)


def _refuse_quantised(config: Config) -> None:
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
