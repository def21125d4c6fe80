"""Where the task heads of each family stand, and what they compute; by the model_type.

A checkpoint has one task head. Its config.json names it under "architectures", behind the family's
name, as in BertForSequenceClassification.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Recipe:
    """A task head's tensors by their names without the family's prefix, and its activation.

    Args:
        output: the last linear.
        bias: its bias, where that is not its own ".bias".
        dense, norm: before it; None where there is none.
        activation: behind dense; a name of transformers', or "tanh".
        key: of config.json, that names the activation instead.
        optional: the biases that a key of config.json switches, and what holds without the key.
    """

    output: str
    bias: str = ""
    dense: str | None = None
    norm: str | None = None
    activation: str = "gelu"
    key: str = ""
    optional: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


WORDS = "word_embeddings.weight", "tok_embeddings.weight"  # the look-up's table, by families
BERTS = ("bert", "electra", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")
ROBERTAS = ("roberta", "xlm-roberta", "camembert", "mpnet")
MODERNBERT = Recipe(
    "classifier",
    dense="head.dense",
    norm="head.norm",
    key="classifier_activation",
    optional={
        "head.dense.bias": ("classifier_bias", False),
        "head.norm.bias": ("norm_bias", False),
        "decoder.bias": ("decoder_bias", True),
    },
)
CLASSIFIERS = {
    "bert": Recipe("classifier", dense="pooler.dense", activation="tanh"),
    "electra": Recipe("classifier.out_proj", dense="classifier.dense"),
    "distilbert": Recipe("classifier", dense="pre_classifier", activation="relu"),
    "modernbert": MODERNBERT,
} | dict.fromkeys(
    ROBERTAS, Recipe("classifier.out_proj", dense="classifier.dense", activation="tanh")
)
TAGGERS = {"modernbert": MODERNBERT} | dict.fromkeys(BERTS, Recipe("classifier"))
VOCABULARIES = {
    "bert": Recipe(
        "cls.predictions.decoder",
        "cls.predictions.bias",
        dense="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        key="hidden_act",
    ),
    "electra": Recipe(
        "generator_lm_head",
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
    ),
    "distilbert": Recipe(
        "vocab_projector", dense="vocab_transform", norm="vocab_layer_norm", key="activation"
    ),
    "modernbert": Recipe(
        "decoder",
        dense="head.dense",
        norm="head.norm",
        key="classifier_activation",
        optional=MODERNBERT.optional,
    ),
} | dict.fromkeys(
    ROBERTAS,
    Recipe("lm_head.decoder", "lm_head.bias", dense="lm_head.dense", norm="lm_head.layer_norm"),
)
