"""GTE: BERT with rotary positions and gates, as transformers' "gte" or the hub's "new"."""

from dataclasses import replace

from model.attention.positions import NtkRope, Rope
from model.config import LINEAR_NAMES, EncoderConfig
from model.families import bert, nomic
from model.families.family import MASKED_LM, Family, HeadRecipe, TinyModel
from model.families.fields import Config, name_sizes, read_number, refuse_other_values
from model.families.ropes import read_angles_of_width, read_dictionary

THETA = 160_000.0  # where config.json does not say
NTK_KEYS = {"type", "factor"}  # of rope_scaling
HUB_TENSOR_NAMES = {  # our names -> those on the hub
    **bert.TABLE_TENSORS,
    "layers.{i}.qkv": "encoder.layer.{i}.attention.qkv_proj",
    "layers.{i}.output": "encoder.layer.{i}.attention.o_proj",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attn_ln",
    "layers.{i}.up_gate": "encoder.layer.{i}.mlp.up_gate_proj",
    "layers.{i}.down": "encoder.layer.{i}.mlp.down_proj",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.mlp_ln",
}

HEAD_RECIPES = bert.HEAD_RECIPES | {  # by end of transformers' class name
    MASKED_LM: HeadRecipe("lm_head.decoder", dense="lm_head.dense", norm="lm_head.layer_norm")
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of GTE: BERT's, with rotary positions and gates without biases."""
    refuse_other_values(
        config,
        position_embedding_type="rope",
        layer_norm_type="layer_norm",
        logn_attention_scale=False,
        pack_qkv=True,
    )
    plain = bert.read_shared_keys(config)
    return replace(
        plain,
        positions="rotary",
        biases=tuple(name for name in LINEAR_NAMES if name not in ("gate", "up")),
        gated=True,
        ropes=(_read_rope(config),) * plain.layers,
    )


def _read_rope(config: Config) -> Rope:
    """Return the rotary embedding; "ntk" is of GTE's own code, unknown to transformers."""
    settings = read_dictionary(config, "rope_scaling") or {}
    if settings.get("type") == "ntk":
        refuse_other_values(config, rope_parameters=None)
        refuse_other_values(settings, **dict.fromkeys(settings.keys() - NTK_KEYS))
        theta = read_number(config, "rope_theta", above=1)
        return NtkRope(theta=theta, factor=read_number(settings, "factor", above=1))
    if config["model_type"] == NEW.name:  # which transformers' "gte" does not read
        refuse_other_values(config, rope_parameters=None, rope_scaling=None)
        return Rope(theta=read_number(config, "rope_theta", above=1))
    return read_angles_of_width(config, THETA)


GTE = Family(
    name="gte",
    read_config=read_config,
    tensor_names=(HUB_TENSOR_NAMES, nomic.TENSOR_NAMES),
    prefixes=("new.", "gte."),
    tiny_model=TinyModel("Gte", bert.TINY_BERT),
    defaults=bert.CONFIG_DEFAULTS | name_sizes(250048, 768, 12, 12, 3072, 8192, type_vocab_size=1),
    head_recipes=HEAD_RECIPES,
    renamed_prefixes={"lm_head.norm.": "lm_head.layer_norm."},  # in the hub's spelling
    tokenizer_class="XLMRobertaTokenizer",
)
NEW = replace(  # of Alibaba-NLP/new-impl
    GTE,
    name="new",
    tiny_model=None,
    defaults={},
    head_recipes=HEAD_RECIPES
    | {MASKED_LM: replace(HEAD_RECIPES[MASKED_LM], activation_key="hidden_act")},
)
