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

FAMILIES = (  # all that are supported
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
SERVED_ELSEWHERE = {  # model_type of other kinds of models -> what they are
    "GLiClass": "a GLiClass is served by gliclass.serve",
    "extractor": "a GLiNER2 is run by its own library, gliner2",
}


def read_config_and_family(config: Any) -> tuple[EncoderConfig, Family]:
    """Return the encoder config that a config.json describes, and its family.

    Raises:
        CheckpointError: the family is unknown, a key is missing, or a value is not supported.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError("config.json is not a JSON object")
    _refuse_quantised(config)
    if (family := find_family(config)) is None:
        if (own := SERVED_ELSEWHERE.get(str(config.get("model_type")))) is not None:
            raise CheckpointError(f"config.json: not supported: {own}")
        kind, supported = config.get("model_type"), ", ".join(sorted({f.name for f in FAMILIES}))
        raise CheckpointError(f"model_type {kind!r} is not supported; these are: {supported}")
    refuse_other_values(config, transformers_weights=None, fusion_config=None)
    try:
        encoder_config = family.read_config({**family.defaults, **config})
    except KeyError as error:
        raise CheckpointError(f"config.json lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"config.json: {error}") from error
    if config.get("is_causal") not in (None, encoder_config.causal):  # transformers' kernels differ
        raise CheckpointError(f"not supported: is_causal {config['is_causal']!r}")
    return encoder_config, family


def find_family(config: Config) -> Family | None:
    """Find the family that claims a config.json, else the one that its model_type names."""
    claiming = (family for family in FAMILIES if family.claims and family.claims(config))
    others = (family for family in FAMILIES if not family.claims)
    named = (family for family in others if family.name == config.get("model_type"))
    return next(chain(claiming, named), None)


def _refuse_quantised(config: Config) -> None:
    """Refuse weights that are quantised or that transformers would quantise; name the method."""
    for key in ("quantization_config", "compression_config"):
        if (value := config.get(key)) is None:
            continue
        settings = value if isinstance(value, Mapping) else {}
        # bitsandbytes did not say its name at first
        unnamed = (
            "bitsandbytes" if settings.keys() & {"load_in_8bit", "load_in_4bit"} else "unnamed"
        )
        method = settings.get("quant_method", unnamed)
        advice = "serve the weights before it"
        raise CheckpointError(f"{key}: not supported: the method {method}; {advice}")
