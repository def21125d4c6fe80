"""DeBERTa-v2, and v3: BERT with distances in its scores, mostly instead of positions."""

from dataclasses import replace

from model.config import EncoderConfig, Relative
from model.errors import CheckpointError
from model.families import bert
from model.families.family import SEQUENCE_CLASSIFICATION, Family, HeadRecipe, TinyModel
from model.families.fields import Config, find_differences, name_sizes

# name in pos_att_type -> field of Relative; c2p is content to position, p2c the reverse
FIELD_OF_TERM = {"c2p": "by_query", "p2c": "by_key"}
TENSOR_NAMES = {  # our names -> the checkpoint's
    **bert.TENSOR_NAMES,
    "relative": "encoder.rel_embeddings",
    "relative_norm": "encoder.LayerNorm",
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query_proj",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key_proj",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value_proj",
    "layers.{i}.relative_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "layers.{i}.relative_query": "encoder.layer.{i}.attention.self.pos_query_proj",
}
HEAD_RECIPES = bert.HEAD_RECIPES | {  # by end of transformers' class name
    SEQUENCE_CLASSIFICATION: HeadRecipe(
        "classifier", dense="pooler.dense", activation_key="pooler_hidden_act"
    )
}
TINY_DEBERTA = {  # more distances than buckets, so that some share them
    **bert.TINY_BERT,
    "relative_attention": True,
    "position_buckets": 12,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of DeBERTa: BERT's, with distances in the scores."""
    base, learned = bert.read_config(config), config.get("position_biased_input", True)
    supported = {
        "relative_attention": True,
        "attention_head_size": base.head_dim,
        "conv_kernel_size": 0,
        "pooler_hidden_size": base.width,
    }
    if wrong := find_differences({"relative_attention": False, **config}, supported):
        raise CheckpointError(f"not supported: {', '.join(wrong)}")
    return replace(
        base, positions="learned" if learned else "relative", relative=_read_relative(config)
    )


def _read_relative(config: Config) -> Relative:
    """Return the settings of disentangled attention."""
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
        norm="layer_norm" in _split_bars(config.get("norm_rel_ebd", "none")),
        **{FIELD_OF_TERM[name]: True for name in _read_terms(config.get("pos_att_type"))},
    )


def _read_terms(value: object) -> list[str]:
    """Return the score terms that pos_att_type names, as a list or with bars between them."""
    names = _split_bars(value) if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not set(names) <= FIELD_OF_TERM.keys():
        raise CheckpointError(f"not supported: pos_att_type {value!r}")
    return names


def _split_bars(names: str) -> list[str]:
    """Return the names in a text such as "c2p|p2c", in lower case."""
    return [name.strip() for name in names.lower().split("|")]


FAMILY = Family(
    name="deberta-v2",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("deberta.",),
    tiny_model=TinyModel("DebertaV2", TINY_DEBERTA),
    defaults=name_sizes(*(128100, 1536, 24, 24, 6144, 512), layer_norm_eps=1e-7, type_vocab_size=0),
    head_recipes=HEAD_RECIPES,
    spare_prefixes=("embeddings.position_",),
    tokenizer_class="DebertaV2Tokenizer",
)
