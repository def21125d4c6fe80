"""GTE: BERT with rotary positions and gates, as transformers' "gte" or the hub's "new"."""

from dataclasses import replace

from model.config import LINEAR_NAMES, EncoderConfig
from model.families import bert, nomic
from model.families.family import WORDS, Family, Recipe, Tiny
from model.families.fields import Config, number, only, sizes
from model.families.ropes import read_angles, read_stated
from model.positions import NtkRope, Rope

THETA = 160_000.0  # where its config is silent
OF_NTK = {"type", "factor"}
HUB = {
    **bert.TABLES,
    "layers.{i}.qkv": "encoder.layer.{i}.attention.qkv_proj",
    "layers.{i}.output": "encoder.layer.{i}.attention.o_proj",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attn_ln",
    "layers.{i}.up_gate": "encoder.layer.{i}.mlp.up_gate_proj",
    "layers.{i}.down": "encoder.layer.{i}.mlp.down_proj",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.mlp_ln",
}

HEADS = bert.HEADS | {
    WORDS: Recipe("lm_head.decoder", dense="lm_head.dense", norm="lm_head.layer_norm")
}


def read(config: Config) -> EncoderConfig:
    """Read the sizes; the gates have no biases."""
    only(
        config,
        position_embedding_type="rope",
        layer_norm_type="layer_norm",
        logn_attention_scale=False,
        pack_qkv=True,
    )
    plain = bert.read_plain(config)
    return replace(
        plain,
        positions="rotary",
        biases=tuple(name for name in LINEAR_NAMES if name not in ("gate", "up")),
        gated=True,
        ropes=(_read_rope(config),) * plain.layers,
    )


def _read_rope(config: Config) -> Rope:
    """Read the rotary angles; "ntk" is its own code's, which transformers does not know."""
    stated = read_stated(config, "rope_scaling") or {}
    if stated.get("type") == "ntk":
        only(config, rope_parameters=None)
        only(stated, **dict.fromkeys(stated.keys() - OF_NTK))
        theta = number(config, "rope_theta", above=1)
        return NtkRope(theta=theta, factor=number(stated, "factor", above=1))
    if config["model_type"] == NEW.name:  # which transformers' "gte" does not read
        only(config, rope_parameters=None, rope_scaling=None)
        return Rope(theta=number(config, "rope_theta", above=1))
    return read_angles(config, THETA)


GTE = Family(
    name="gte",
    read=read,
    names=(HUB, nomic.NAMES),
    prefixes=("new.", "gte."),
    tiny=Tiny("Gte", bert.SMALL),
    defaults=bert.DEFAULTS | sizes(250048, 768, 12, 12, 3072, 8192, type_vocab_size=1),
    heads=HEADS,
    renamed={"lm_head.norm.": "lm_head.layer_norm."},  # in the hub's spelling
    tokenizer="XLMRobertaTokenizer",
)
NEW = replace(  # of Alibaba-NLP/new-impl
    GTE,
    name="new",
    tiny=None,
    defaults={},
    heads=HEADS | {WORDS: replace(HEADS[WORDS], key="hidden_act")},
)
