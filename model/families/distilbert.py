"""DistilBERT: BERT without token types, under keys of its own."""

from model.config import EncoderConfig
from model.families import bert
from model.families.family import MASKED_LM, SEQUENCE_CLASSIFICATION, Family, HeadRecipe, TinyModel
from model.families.fields import (
    TINY_SIZES,
    Config,
    read_activation,
    read_sizes,
    refuse_other_values,
)

# keys of its sizes, in the order of TINY_SIZES
SIZES = ("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "max_position_embeddings")
NORM_EPS = 1e-12  # written into its code, not its config
TENSOR_NAMES = {  # our names -> the checkpoint's
    **bert.TABLE_TENSORS,
    "layers.{i}.query": "transformer.layer.{i}.attention.q_lin",
    "layers.{i}.key": "transformer.layer.{i}.attention.k_lin",
    "layers.{i}.value": "transformer.layer.{i}.attention.v_lin",
    "layers.{i}.output": "transformer.layer.{i}.attention.out_lin",
    "layers.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "layers.{i}.up": "transformer.layer.{i}.ffn.lin1",
    "layers.{i}.down": "transformer.layer.{i}.ffn.lin2",
    "layers.{i}.feed_forward_norm": "transformer.layer.{i}.output_layer_norm",
}
HEAD_RECIPES = bert.HEAD_RECIPES | {  # by end of transformers' class name
    SEQUENCE_CLASSIFICATION: HeadRecipe("classifier", dense="pre_classifier", activation="relu"),
    MASKED_LM: HeadRecipe(
        "vocab_projector",
        dense="vocab_transform",
        norm="vocab_layer_norm",
        activation_key="activation",
    ),
}


def read_config(config: Config) -> EncoderConfig:
    """Return the encoder config of DistilBERT."""
    # the other families' names for three of them, which transformers follows where both are present
    own = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    refuse_other_values(config, **{name: config[key] for name, key in own.items()})
    sizes = read_sizes(
        {**config, "layer_norm_eps": NORM_EPS},
        width="dim",
        layers="n_layers",
        heads="n_heads",
        feed_forward="hidden_dim",
    )
    activation = read_activation(config, "activation")
    return EncoderConfig(**sizes, embedding_width=sizes["width"], activation=activation)


FAMILY = Family(
    name="distilbert",
    read_config=read_config,
    tensor_names=(TENSOR_NAMES,),
    prefixes=("distilbert.",),
    tiny_model=TinyModel(
        "DistilBert", dict(zip(SIZES, TINY_SIZES.values(), strict=True)), "activation"
    ),
    defaults=dict(zip(SIZES, (30522, 768, 6, 12, 3072, 512), strict=True)),
    head_recipes=HEAD_RECIPES,
    tokenizer_class="BertTokenizer",
)
