"""Jina Embeddings v3: BERT with rotary positions, and adapters (loading/jina_adapters.py)."""

from dataclasses import replace

from model.attention.positions import Rope
from model.config import EncoderConfig
from model.families import bert, nomic, roberta
from model.families.family import Family, TinyModel
from model.families.fields import Config, name_sizes, read_number, refuse_other_values
from model.families.ropes import check_head_size, read_angles_of_width

NAME, ROBERTA = "jina_embeddings_v3", "xlm-roberta"  # transformers' name, and its own code's
CODE_REPOSITORY = "xlm-roberta-flash-implementation"  # as auto_map names it
THETA = 20_000.0  # where config.json does not say
HUB_TENSOR_NAMES = {  # our names -> those on the hub
    **bert.TABLE_TENSORS,
    "norm": "emb_ln",
    "layers.{i}.qkv": "encoder.layers.{i}.mixer.Wqkv",
    "layers.{i}.output": "encoder.layers.{i}.mixer.out_proj",
    "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc1",
    "layers.{i}.down": "encoder.layers.{i}.mlp.fc2",
    "layers.{i}.feed_forward_norm": "encoder.layers.{i}.norm2",
}
TENSOR_NAMES = {  # our names -> transformers'
    **nomic.TENSOR_NAMES,
    "layers.{i}.up": "layers.{i}.mlp.fc1",
    "layers.{i}.down": "layers.{i}.mlp.fc2",
}


def claims_config(config: Config) -> bool:
    """Tell whether a config is of Jina v3; on the hub its model_type is XLM-RoBERTa's or none."""
    kind = config.get(
        "model_type", ROBERTA if CODE_REPOSITORY in str(config.get("auto_map")) else None
    )
    own = config.get("position_embedding_type") == "rotary" and "rotary_emb_base" in config
    return kind == NAME or (kind == ROBERTA and own)


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config, from the hub's keys (rotary_emb_base) or transformers'."""
    hub = "rotary_emb_base" in config and config.get("rope_parameters") is None
    refuse_other_values(
        config, position_embedding_type="rotary", **({} if hub else {"lora_adaptations": None})
    )
    rope = _read_hub_rope(config) if hub else read_angles_of_width(config, THETA)
    plain = bert.read_shared_keys({**config, "model_type": NAME})
    return replace(plain, positions="rotary", ropes=(rope,) * plain.layers)


def _read_hub_rope(config: Config) -> Rope:
    """Return the rotary embedding from the hub's keys; refuse its code's other choices."""
    check_head_size(config)
    refuse_other_values(
        config,
        rope_scaling=None,
        rotary_emb_dim=config["hidden_size"] // config["num_attention_heads"],
        rotary_emb_scale_base=None,
        rotary_emb_interleaved=False,
        pad_vocab_size_multiple=1,
        truncate_dim=None,
    )
    if config.get("emb_pooler") is not None:
        refuse_other_values(config, emb_pooler="mean")
    return Rope(theta=read_number(config, "rotary_emb_base", above=1))


FAMILY = Family(
    name=NAME,
    read_config=read_config,
    tensor_names=(HUB_TENSOR_NAMES, TENSOR_NAMES),
    prefixes=("roberta.",),
    tiny_model=TinyModel("JinaEmbeddingsV3", bert.TINY_BERT),
    defaults=name_sizes(
        *(250002, 1024, 24, 16, 4096, 8194), layer_norm_eps=1e-5, type_vocab_size=1
    ),
    claims=claims_config,
    head_recipes=roberta.HEAD_RECIPES,
    tokenizer_class="XLMRobertaTokenizer",
    tasks_key="lora_adaptations",
)
