"""Family: all that loading and the tests know of one model_type; each has a module of this package.

TensorNames maps our name of a tensor to the checkpoint's, with {i} for the layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from model.config import EncoderConfig
from model.families.fields import Config

TensorNames = Mapping[str, str]  # our names -> the checkpoint's
# how the names of transformers' classes with a task head end
SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION, MASKED_LM = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
)
CAUSAL_LM = "ForCausalLM"  # likewise


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """Where a task head's tensors are, without the family's prefix, and its activation.

    Args:
        output: the name of the last linear.
        tied_bias: the tensor that its bias is tied to; "": none.
        dense, norm: names of a linear and a norm before it; None: there is none.
        activation: after dense; a name of transformers', or "tanh".
        activation_key: key of config.json that may name another activation; "": none.
        optional_biases: by name, the key of config.json that switches it, and the default.
    """

    output: str
    tied_bias: str = ""
    dense: str | None = None
    norm: str | None = None
    activation: str = "gelu"
    activation_key: str = ""
    optional_biases: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A small model that transformers makes, with random weights, for the tests.

    Args:
        class_prefix: how the names of transformers' classes begin.
        sizes: values of its config.json.
        activation_key: the key of config.json that names the activation.
    """

    class_prefix: str
    sizes: Config
    activation_key: str = "hidden_act"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How checkpoints of one model_type are read.

    Args:
        name: its model_type.
        read_config: returns the encoder config of a config.json; refuses by name what the encoder
            would not compute exactly, and guesses no key that decides about the arithmetic.
        tensor_names: a table for each layout of its files, the newest last.
        prefixes: what a checkpoint with a task head puts before every tensor's name.
        tiny_model: a model for the tests; None where transformers has no class for it.
        defaults: values that transformers' class takes where config.json lacks a key.
        claims: tells whether a config is of this family, where its model_type does not tell;
            it goes before all names.
        spare_prefixes: prefixes of tensors that files may have without their being read.
        head_recipes: recipes of supported task heads, by the end of transformers' class name.
        renamed_prefixes: prefixes of tensors in some files -> those of `tensor_names`.
        tokenizer_class: transformers' default; the generic class has its file read as it is.
        tasks_key: the key of config.json that names tasks with adapters; "": there is none.
    """

    name: str
    read_config: Callable[[Config], EncoderConfig]
    tensor_names: tuple[TensorNames, ...]
    prefixes: tuple[str, ...]
    tiny_model: TinyModel | None = None
    defaults: Config = field(default_factory=dict)
    claims: Callable[[Config], bool] | None = None
    spare_prefixes: tuple[str, ...] = ()
    head_recipes: Mapping[str, HeadRecipe] = field(default_factory=dict)
    renamed_prefixes: Mapping[str, str] = field(default_factory=dict)
    tokenizer_class: str = "TokenizersBackend"
    tasks_key: str = ""
