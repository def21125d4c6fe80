"""ModernBERT: pre-norm and rotary; most layers attend only within a window."""

from dataclasses import replace

from model.attention.positions import Rope
from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families.family import (
    MASKED_LM,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Family,
    HeadRecipe,
    TinyModel,
)
from model.families.fields import (
    TINY_SIZES,
    Config,
    name_sizes,
    read_activation,
    read_sizes,
    refuse_other_values,
)
from model.families.ropes import EVERYWHERE, LOCAL, check_head_size, read_dictionary, read_ropes

GLOBAL_EVERY = 3  # without layer_types every third layer attends everywhere
THETA_EVERYWHERE, THETA_LOCAL = 160_000.0, 10_000.0  # where config.json does not say
TENSOR_NAMES = {  # our names -> the checkpoint's
    "word": "embeddings.tok_embeddings",
    "norm": "embeddings.norm",
    "layers.{i}.qkv": "layers.{i}.attn.Wqkv",
    "layers.{i}.output": "layers.{i}.attn.Wo",
    "layers.{i}.attention_norm": "layers.{i}.attn_norm",
    "layers.{i}.gate_up": "layers.{i}.mlp.Wi",
    "layers.{i}.down": "layers.{i}.mlp.Wo",
    "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
    "final_norm": "final_norm",
}
CLASSIFIER_RECIPE = HeadRecipe(  # of all heads; one over the vocabulary has another output
    "classifier",
    dense="head.dense",
    norm="head.norm",
    activation_key="classifier_activation",
    optional_biases={
        "head.dense.bias": ("classifier_bias", False),
        "head.norm.bias": ("norm_bias", False),
        "decoder.bias": ("decoder_bias", True),
    },
)
TINY_MODERNBERT = {  # config of a model for tests
    **TINY_SIZES,
    "local_attention": 16,
    "pad_token_id": 0,
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of ModernBERT."""
    window = config["local_attention"] // 2
    refuse_other_values(
        config, attention_bias=False, mlp_bias=False, norm_bias=False, sliding_window=window
    )
    every = config.get("global_attn_every_n_layers", GLOBAL_EVERY)
    kinds = config.get("layer_types") or [
        LOCAL if i % every else EVERYWHERE for i in range(config["num_hidden_layers"])
    ]
    unknown = set(kinds) - {EVERYWHERE, LOCAL}
    if unknown:
        raise CheckpointError(f"not supported: layer_types {sorted(unknown)}")
    ropes = _read_ropes(config)
    return EncoderConfig(
        **read_sizes(config, norm_eps="norm_eps"),
        embedding_width=config["hidden_size"],
        positions="rotary",
        pre_norm=True,
        biases=(),
        norm_bias=False,
        activation=read_activation(config, "hidden_activation"),
        gated=True,
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(window if kind == LOCAL else None for kind in kinds),
    )


def _read_ropes(config: Config) -> dict[str, Rope]:
    """Return the rotary embedding by kind of layer; the older key overrides the newer."""
    thetas = {
        EVERYWHERE: config.get("global_rope_theta", THETA_EVERYWHERE),
        LOCAL: config.get("local_rope_theta", THETA_LOCAL),
    }
    settings = read_dictionary(config, "rope_parameters")
    over = read_dictionary(config, "rope_scaling")
    if settings is None:
        settings = {kind: {"rope_type": "default"} for kind in thetas}
    if over is not None:
        settings = {**settings, **{kind: {**settings[kind], **over} for kind in thetas}}
    check_head_size(config)
    return read_ropes(config, settings, thetas)


FAMILY = Family(
    name="modernbert",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("model.",),
    tiny_model=TinyModel("ModernBert", TINY_MODERNBERT, activation_key="hidden_activation"),
    defaults=name_sizes(*(50368, 768, 22, 12, 1152, 8192), norm_eps=1e-5, local_attention=128),
    head_recipes={
        SEQUENCE_CLASSIFICATION: CLASSIFIER_RECIPE,
        TOKEN_CLASSIFICATION: CLASSIFIER_RECIPE,
        MASKED_LM: replace(CLASSIFIER_RECIPE, output="decoder"),
    },
)
