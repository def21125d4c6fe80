"""Jina Embeddings v2: BERT, by its model_type, with slopes by distance (ALiBi) and gates.

Its own code never runs, and transformers has no class for it.
"""

from dataclasses import replace

from model.config import LINEAR_NAMES, Activation, EncoderConfig
from model.errors import CheckpointError
from model.families import bert
from model.families.fields import Config, refuse_other_values

FEED_FORWARDS: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}  # gated
CODE_REPOSITORY = "jina-bert-v2-qk-post-norm"  # its layers have three more norms: refused
TENSOR_NAMES = {  # our names -> the checkpoint's
    **{ours: theirs for ours, theirs in bert.TENSOR_NAMES.items() if ours != "layers.{i}.up"},
    "layers.{i}.gate_up": "encoder.layer.{i}.mlp.gated_layers",
    "layers.{i}.down": "encoder.layer.{i}.mlp.wo",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.mlp.layernorm",
}


def claims_config(config: Config) -> bool:
    """Tell whether a config is of Jina v2 rather than of BERT, whose model_type it has."""
    alibi = config.get("position_embedding_type") == "alibi"
    return alibi and config.get("model_type") == bert.FAMILY.name


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of Jina v2: BERT's, with ALiBi and a gated feed-forward block."""
    refuse_other_values(
        config, is_decoder=False, add_cross_attention=False, embedding_size=config["hidden_size"]
    )
    kind = config.get("feed_forward_type")
    if kind not in FEED_FORWARDS:
        known = ", ".join(FEED_FORWARDS)
        raise CheckpointError(f"not supported: feed_forward_type {kind!r}; these are: {known}")
    if any(CODE_REPOSITORY in str(config.get(key)) for key in ("auto_map", "_name_or_path")):
        raise CheckpointError(f"not supported: norms of queries and keys ({CODE_REPOSITORY})")
    plain = bert.read_config({**config, "position_embedding_type": "absolute"})
    return replace(
        plain,
        positions="alibi",
        biases=tuple(name for name in LINEAR_NAMES if name not in ("gate", "up")),
        activation=FEED_FORWARDS[kind],
        gated=True,
    )


FAMILY = replace(
    bert.FAMILY,
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    tiny_model=None,
    claims=claims_config,
)
