"""NomicBERT: BERT with rotary positions, gates and no biases."""

from model.attention.positions import Rope
from model.config import EncoderConfig
from model.families import bert, llama
from model.families.family import Family, TinyModel
from model.families.fields import (
    Config,
    read_activation,
    read_number,
    read_sizes,
    refuse_other_values,
)
from model.families.ropes import read_angles_of_width

THETA = 1000.0  # where config.json does not say
HUB_SIZE_KEYS = {  # as SIZE_KEYS, for configs on the hub
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "feed_forward": "n_inner",
    "max_tokens": "n_positions",
    "norm_eps": "layer_norm_epsilon",
}
HUB_TENSOR_NAMES = {  # our names -> those on the hub
    **bert.TABLE_TENSORS,
    "norm": "emb_ln",
    "layers.{i}.qkv": "encoder.layers.{i}.attn.Wqkv",
    "layers.{i}.output": "encoder.layers.{i}.attn.out_proj",
    "layers.{i}.attention_norm": "encoder.layers.{i}.norm1",
    "layers.{i}.gate": "encoder.layers.{i}.mlp.fc12",
    "layers.{i}.up": "encoder.layers.{i}.mlp.fc11",
    "layers.{i}.down": "encoder.layers.{i}.mlp.fc2",
    "layers.{i}.feed_forward_norm": "encoder.layers.{i}.norm2",
}
TENSOR_NAMES = {  # our names -> transformers'
    **bert.TABLE_TENSORS,
    **llama.LINEAR_TENSORS,
    "layers.{i}.attention_norm": "layers.{i}.post_attention_layernorm",
    "layers.{i}.feed_forward_norm": "layers.{i}.post_mlp_layernorm",
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config, from the hub's keys (n_embd ..) or transformers'."""
    hub = "n_embd" in config
    refuse_other_values(
        config,
        prenorm=False,
        parallel_block=False,
        causal=False,
        use_rms_norm=False,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_emb_scale_base=None,
        rotary_scaling_factor=None,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        activation_function="swiglu",
        num_experts=0,
        **({"hidden_act": "silu"} if hub else {}),  # its code reads only activation_function
    )
    sizes = read_sizes(config, **(HUB_SIZE_KEYS if hub else {}))
    rope = _read_hub_rope(config) if hub else read_angles_of_width(config, THETA)
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        positions="rotary",
        types=config["type_vocab_size"],
        biases=(),
        activation=read_activation(config, "hidden_act", "silu"),
        gated=True,
        ropes=(rope,) * sizes["layers"],
    )


def _read_hub_rope(config: Config) -> Rope:
    """Return the rotary embedding from the hub's key."""
    refuse_other_values(config, rope_parameters=None, rope_scaling=None)
    return Rope(theta=read_number(config, "rotary_emb_base", above=1))


FAMILY = Family(
    name="nomic_bert",
    read_config=read_config,
    tensor_names=(HUB_TENSOR_NAMES, TENSOR_NAMES),
    prefixes=("nomic_bert.", "bert."),
    tiny_model=TinyModel("NomicBert", bert.TINY_BERT),
    defaults=bert.CONFIG_DEFAULTS | {"vocab_size": 30528, "max_position_embeddings": 2048},
    tokenizer_class="BertTokenizer",
)
