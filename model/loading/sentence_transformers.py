"""The files of sentence-transformers in a folder -> pooling, longest sequence, prompts.

modules.json                    Transformer, Pooling, Dense .., Normalize, in this order
1_Pooling/config.json           how token vectors become one
2_Dense/config.json, .safetensors
sentence_bert_config.json       the longest sequence, lower-casing; older names: SENTENCE
config_sentence_transformers.json   prompts: what goes before a text, by name
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Mode
from model.errors import CheckpointError
from model.kernels import Affine, Kernels
from model.loading.files import CONFIG, PICKLES, WEIGHTS, differences, read_object
from model.loading.modules import MODULES, PROMPTS, read_modules, read_optional, token_layers
from model.loading.tensors import Shape, check, open_tensors
from model.pooling import Dense, Pooling, identity

SENTENCE = tuple(  # what sentence-transformers reads, and in this order
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TOKENIZER_CONFIG = "tokenizer_config.json"
# in the order in which several are joined
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
PLAIN = Pooling(("mean",), normalize=False)  # of a folder without modules
OURS = {"lasttoken": "last", "mean_sqrt_len_tokens": "mean_sqrt_len"}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.modules.linear.Identity": identity,
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.activation.ReLU": F.relu,
    "torch.nn.modules.activation.GELU": F.gelu,
    "torch.nn.modules.activation.SiLU": F.silu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, slots=True)
class Prompts:
    """What goes before a text, by name.

    Args:
        default: the name that holds where none is given, as in sentence-transformers; None: no
            prompt then.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def find(self, name: str | None) -> str:
        """The prompt of a name, or the default; "" is none.

        Raises:
            KeyError: there is none of that name.
        """
        name = self.default if name is None else name
        return "" if name is None else self.texts[name]


def read_pooling(folder: Path, width: int, device: torch.device, kernels: Kernels) -> Pooling:
    """A folder's own way to one vector; PLAIN where it does not say.

    Args:
        width: of the token vectors.

    Raises:
        CheckpointError: names the module or the choice that is not supported.
    """
    modules = read_modules(folder)
    if not modules:
        return PLAIN
    kinds = [kind for kind, _ in modules]
    scores = kinds == ["Transformer"] and _scores(folder)
    if kinds[1:] == ["SpladePooling"] or scores or token_layers(folder):
        return PLAIN  # its vectors are not what the checkpoint is for
    denses = kinds.count("Dense")
    order = ["Transformer", "Pooling", *["Dense"] * denses, "Normalize"]
    if kinds not in (order, order[:-1]):
        raise CheckpointError(f"{MODULES}: not supported: {', '.join(kinds)}")
    modes = _modes(read_object(modules[1][1] / CONFIG))
    dense: list[Dense] = []
    inputs = len(modes) * width
    for _, path in modules[2 : 2 + denses]:
        dense.append(_dense(path, inputs, device, kernels))
        inputs = dense[-1].outputs
    return Pooling(modes, "Normalize" in kinds, dense=tuple(dense))


def read_max_tokens(folder: Path, positions: int) -> int:
    """What sentence-transformers stored, in one file or, since its version 6, in the other."""
    tokenizer = read_optional(folder / TOKENIZER_CONFIG)
    limit = _sentence(folder).get("max_seq_length") or tokenizer.get("model_max_length")
    return min(int(limit), positions) if limit else positions


def read_lower_case(folder: Path) -> bool:
    """Whether sentence-transformers lower-cases texts before it tokenizes them.

    Raises:
        CheckpointError: the file says neither yes nor no.
    """
    lower_case = _sentence(folder).get("do_lower_case", False) if read_modules(folder) else False
    if not isinstance(lower_case, bool):
        raise CheckpointError(f"do_lower_case is neither true nor false: {lower_case!r}")
    return lower_case


def read_prompts(folder: Path) -> Prompts:
    """A folder's prompts; `prompts` and `default_prompt_name` are all that is read of the file.

    Raises:
        CheckpointError: they are not texts by name, the default is none of them, or the vector
            is to be made without the prompt's tokens.
    """
    config = read_optional(folder / PROMPTS)
    texts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(t, str | None) for t in texts.values()):
        raise CheckpointError(f"{PROMPTS}: prompts must map names to texts")
    texts = {name: text or "" for name, text in texts.items()}
    if default is not None and default not in texts:
        raise CheckpointError(f"{PROMPTS}: default_prompt_name names no prompt")
    poolings = [
        read_object(path / CONFIG) for kind, path in read_modules(folder) if kind == "Pooling"
    ]
    if any(texts.values()) and any(pooling.get("include_prompt") is False for pooling in poolings):
        raise CheckpointError("pooling not supported: include_prompt false, with prompts")
    return Prompts(texts, default)


def _sentence(folder: Path) -> Mapping[str, Any]:
    """What sentence-transformers stored of its Transformer: the first such file with content."""
    for name in SENTENCE:
        config = read_optional(folder / name)
        if config:
            return config
    return {}


def _scores(folder: Path) -> bool:
    """Whether a lone Transformer is a CrossEncoder's."""
    return bool(read_optional(folder / PROMPTS).get("model_type") == "CrossEncoder")


def _modes(config: Mapping[str, Any]) -> tuple[Mode, ...]:
    names = config.get("pooling_mode")  # how sentence-transformers 6 writes it
    if names is None:
        flags = [name for name in {**FLAGS, **config} if name.startswith("pooling_mode_")]
        names = [FLAGS.get(flag, flag) for flag in flags if config.get(flag) is True]
    names = [names] if isinstance(names, str) else names
    modes = tuple(mode for name in names for mode in get_args(Mode) if OURS.get(name, name) == mode)
    if not names or len(modes) != len(names):
        raise CheckpointError(f"pooling not supported: {', '.join(map(str, names)) or 'none'}")
    return modes


def _dense(folder: Path, inputs: int, device: torch.device, kernels: Kernels) -> Dense:
    """One Dense module.

    Raises:
        CheckpointError: a choice that is not supported, or tensors that do not fit.
    """
    config = read_object(folder / CONFIG)
    key = "sentence_embedding"
    supported = {"use_residual": False, "module_input_name": key, "module_output_name": key}
    wrong = differences(config, supported)
    activation: Any = config.get("activation_function")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        wrong.append(f"activation_function {activation!r}")
    if wrong:
        raise CheckpointError(f"{folder.name}: not supported: {', '.join(wrong)}")
    weight, bias = _affine(folder, inputs, device, biased=config.get("bias", True))
    return Dense(kernels.linear(weight, bias), ACTIVATIONS[activation], len(weight))


def dense_weights(folder: Path) -> tuple[Path, str]:
    """The file of a Dense module's weights, and what a refusal calls it.

    Raises:
        CheckpointError: there is none, or a pickle.
    """
    path, pickle = folder / WEIGHTS, folder / PICKLES[0]
    where = f"{folder.name}/{WEIGHTS}"
    if not path.is_file() and pickle.is_file():
        advice = "save_pretrained of sentence-transformers writes safetensors"
        name = f"{folder.name}/{pickle.name}"
        raise CheckpointError(f"{name} is a pickle, which can run code; {advice}")
    if not path.is_file():
        raise CheckpointError(f"{folder.parent} lacks {where}")
    return path, where


def _affine(folder: Path, inputs: int, device: torch.device, *, biased: bool) -> Affine:
    """Weight and bias of a Dense module, float32.

    Raises:
        CheckpointError: the file is missing, a pickle or broken, or tensors do not fit.
    """
    path, where = dense_weights(folder)
    with open_tensors({where: path}) as tensors:
        shape = tensors["linear.weight"].shape if "linear.weight" in tensors else ()
        outputs = max((1, *shape[:1]))
        shapes: dict[str, Shape] = {"linear.weight": (outputs, inputs)}
        shapes |= {"linear.bias": (outputs,)} if biased else {}
        check(tensors, shapes, where)
        weight, *bias = (tensors[name].read().float().to(device) for name in shapes)
    return weight, bias[0] if bias else None
