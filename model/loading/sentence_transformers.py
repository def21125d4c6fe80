"""Read sentence-transformers' files of a folder: pooling, longest sequence, prompts.

modules.json                    Transformer, Pooling, and the layers of pipeline/layers.py;
1_Pooling/config.json           how token vectors become one
sentence_bert_config.json       the longest sequence, lower-casing; its arguments: modules.py
config_sentence_transformers.json   prompts: what goes before a text, by name; the numbers kept
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from model.errors import CheckpointError, refuse_unsupported
from model.kernels import Kernels
from model.loading.files import CONFIG, read_object
from model.loading.modules import (
    MODULES_FILE,
    PROMPTS_FILE,
    find_encoder_folder,
    find_misfit,
    find_token_layers,
    has_task_adapters,
    is_chained_reranker,
    is_generative_reranker,
    read_model_type,
    read_modules,
    read_optional,
    read_transformer_settings,
)
from model.loading.pipeline.layers import LAYER_KINDS, read_layers, read_modes
from model.loading.tokenizer_settings import read_longest
from model.pooling import Pooling, Unit

LAST_NORMALIZED = Pooling(("last",), normalize=True)  # of Jina v5
MEAN_POOLING = Pooling(("mean",), normalize=False)  # of a folder without modules
LAST_POOLING = Pooling(("last",), normalize=False)  # of one with a causal language model


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a checkpoint.

    Args:
        texts: what is put before a text, by the prompt's name.
        default: the name used where a request has none; None: no prompt then.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def find(self, name: str | None) -> str:
        """Return the prompt of this name, or the default for None; "" is no prompt.

        Raises:
            KeyError: there is no prompt of that name.
        """
        name = self.default if name is None else name
        return "" if name is None else self.texts[name]


def read_pooling(
    folder: Path, raw: Mapping[str, Any], width: int, device: torch.device, kernels: Kernels
) -> Pooling:
    """Return a folder's pooling; LAST_POOLING or MEAN_POOLING where it does not say.

    Args:
        raw: config.json.
        width: of the token vectors.

    Raises:
        CheckpointError: names the module or the choice that is not supported.
    """
    modules = read_modules(folder)
    if not modules:
        names = raw.get("architectures") or [""]
        generates_text = isinstance(names, list) and str(names[0]).endswith("ForCausalLM")
        return LAST_POOLING if generates_text and raw.get("is_causal", True) else MEAN_POOLING
    kinds = [kind for kind, _ in modules]
    if kinds == ["Transformer"] and has_task_adapters(folder):
        return LAST_NORMALIZED  # by its own code
    is_plain_reranker = kinds == ["Transformer"] and read_model_type(folder) == "CrossEncoder"
    is_reranker = is_plain_reranker or is_chained_reranker(folder) or is_generative_reranker(folder)
    if kinds[1:] == ["SpladePooling"] or is_reranker or find_token_layers(folder):
        return MEAN_POOLING  # the checkpoint is not made for vectors of texts
    culprit = find_misfit(kinds, ["Transformer", "Pooling"], LAYER_KINDS)
    refuse_unsupported(MODULES_FILE, culprit)
    modes = read_modes(modules[1][1])
    layers = read_layers(modules[2:], len(modes) * width, device, kernels)
    normalize = isinstance(layers[-1], Unit) if layers else False
    pooling = Pooling(modes, normalize, layers=layers[:-1] if normalize else layers)
    return replace(pooling, dimensions=_read_dimensions(folder, pooling.uncut_size(width)))


def read_max_tokens(folder: Path, positions: int) -> int:
    """Return the most tokens of a text: sentence-transformers' setting, at most `positions`."""
    limit = read_longest(folder, _read_transformer_settings(folder).get("max_seq_length"))
    return min(limit, positions) if limit else positions


def read_lower_case(folder: Path) -> bool:
    """Return whether sentence-transformers lower-cases texts before it tokenizes them.

    Raises:
        CheckpointError: the setting is neither true nor false.
    """
    lower_case = _read_transformer_settings(folder).get("do_lower_case", False)
    if not isinstance(lower_case, bool):
        raise CheckpointError(f"do_lower_case is neither true nor false: {lower_case!r}")
    return lower_case


def read_prompts(folder: Path) -> Prompts:
    """Return a folder's prompts.

    Raises:
        CheckpointError: they are not texts by name, the default is none of them, or the pooling
            leaves out the prompt's tokens.
    """
    config = read_optional(folder / PROMPTS_FILE)
    texts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(t, str | None) for t in texts.values()):
        raise CheckpointError(f"{PROMPTS_FILE}: prompts must map names to texts")
    texts = {name: text or "" for name, text in texts.items()}
    if default is not None and not (isinstance(default, str) and default in texts):
        raise CheckpointError(f"{PROMPTS_FILE}: default_prompt_name names no prompt")
    poolings = [
        read_object(path / CONFIG) for kind, path in read_modules(folder) if kind == "Pooling"
    ]
    if any(texts.values()) and any(not pooling.get("include_prompt", True) for pooling in poolings):
        raise CheckpointError("pooling not supported: include_prompt false, with prompts")
    return Prompts(texts, default)


def _read_dimensions(folder: Path, size: int) -> int | None:
    """Return how many first numbers of a vector are kept by default; None: all."""
    stored = read_optional(folder / PROMPTS_FILE).get("truncate_dim")
    if stored is not None and (type(stored) is not int or stored < 1):
        raise CheckpointError(f"{PROMPTS_FILE}: truncate_dim is no positive integer: {stored!r}")
    return stored if stored and stored < size else None


def _read_transformer_settings(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the Transformer module; none without modules.json."""
    return read_transformer_settings(find_encoder_folder(folder)) if read_modules(folder) else {}
