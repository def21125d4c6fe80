"""Family: all that loading and the tests know of one model_type; each has a file next to this.

A table of names has ours -> the checkpoint's, {i} the layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from model.config import EncoderConfig
from model.families.fields import Config

TensorNames = Mapping[str, str]
# heads, by how transformers' classes of them end
SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION, MASKED_LM = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMaskedLM",
)
CAUSAL_LM = "ForCausalLM"


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """A head's tensors by their names without the family's prefix, and its activation.

    Args:
        output: the last linear.
        tied_bias: what its bias is tied to, if anything.
        dense, norm: before it; None where there is none.
        activation: behind dense; a name of transformers', or "tanh".
        activation_key: of config.json, that may name another activation.
        optional_biases: those that a key of config.json switches, and their default without it.
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
        class_prefix: how the names of its classes begin.
        sizes: keys of its config.
        activation_key: the key that names the activation.
    """

    class_prefix: str
    sizes: Config
    activation_key: str = "hidden_act"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """How one model_type is read.

    Args:
        name: its model_type.
        read_config: makes an encoder's config of a config.json; refuses by name what the encoder
            would not compute exactly, and guesses no key that decides about the arithmetic.
        tensor_names: a table for each layout of its files, the newest last.
        prefixes: that a checkpoint with a task head puts before every name.
        tiny_model: None where transformers has no class for it.
        defaults: what transformers' class has where a config.json is silent.
        claims: tells its configs, where more than the name does; asked before any name is.
        spare_prefixes: how names begin that many files have, read or not.
        head_recipes: of those that are read, by the ends of their classes' names.
        renamed_prefixes: how names begin in some files, and how they do in others.
        tokenizer_class: transformers' own by default; a generic one has its file read as it is.
        tasks_key: the key of config.json that names tasks with adapters in the checkpoint, if any.
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
