"""DeBERTa-v2, and v3: BERT with distances in its scores, mostly instead of positions."""

from dataclasses import replace

from model.config import EncoderConfig, Relative
from model.errors import CheckpointError
from model.families import bert
from model.families.family import CLASSES, Family, Recipe, Tiny
from model.families.fields import Config, differences, sizes

TERMS = {"c2p": "by_query", "p2c": "by_key"}  # content to position, and position to content
NAMES = {
    **bert.NAMES,
    "relative": "encoder.rel_embeddings",
    "relative_norm": "encoder.LayerNorm",
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query_proj",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key_proj",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value_proj",
    "layers.{i}.relative_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "layers.{i}.relative_query": "encoder.layer.{i}.attention.self.pos_query_proj",
}
HEADS = bert.HEADS | {CLASSES: Recipe("classifier", dense="pooler.dense", key="pooler_hidden_act")}
SMALL = {  # more distances than buckets, so that some share them
    **bert.SMALL,
    "relative_attention": True,
    "position_buckets": 12,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}


def read(config: Config) -> EncoderConfig:
    """Read BERT's sizes, and what distances add."""
    base, learned = bert.read(config), config.get("position_biased_input", True)
    supported = {
        "relative_attention": True,
        "attention_head_size": base.head_dim,
        "conv_kernel_size": 0,
        "pooler_hidden_size": base.width,
    }
    if wrong := differences({"relative_attention": False, **config}, supported):
        raise CheckpointError(f"not supported: {', '.join(wrong)}")
    return replace(base, positions="learned" if learned else "relative", relative=_relative(config))


def _relative(config: Config) -> Relative:
    """Read what distance adds to scores."""
    furthest = config.get("max_relative_positions", -1)
    furthest = config["max_position_embeddings"] if furthest < 1 else furthest
    buckets = max(0, config.get("position_buckets", -1))
    if buckets and not 1 <= buckets // 2 < furthest - 1:  # no logarithm makes rows of these
        raise CheckpointError(
            f"not supported: position_buckets {buckets!r} with max_relative_positions {furthest!r}"
        )
    return Relative(
        reach=buckets or furthest,
        furthest=furthest if buckets else None,
        shared=config.get("share_att_key", False),
        norm="layer_norm" in _names(config.get("norm_rel_ebd", "none")),
        **{TERMS[name]: True for name in _terms(config.get("pos_att_type"))},
    )


def _terms(said: object) -> list[str]:
    """Read the terms next to that of content alone, as a list or with bars between them."""
    names = _names(said) if isinstance(said, str) else said
    if not isinstance(names, list) or not names or not set(names) <= TERMS.keys():
        raise CheckpointError(f"not supported: pos_att_type {said!r}")
    return names


def _names(said: str) -> list[str]:
    return [name.strip() for name in said.lower().split("|")]


FAMILY = Family(
    name="deberta-v2",
    read=read,
    names=(NAMES,),
    prefixes=("deberta.",),
    tiny=Tiny("DebertaV2", SMALL),
    defaults=sizes(*(128100, 1536, 24, 24, 6144, 512), layer_norm_eps=1e-7, type_vocab_size=0),
    heads=HEADS,
    spare=("embeddings.position_",),
    tokenizer="DebertaV2Tokenizer",
)
