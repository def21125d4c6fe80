"""What sentence-transformers hands on to transformers, out of its file of a Transformer.

sentence_bert_config.json   tokenizer_args over tokenizer_config.json, config_args over config.json,
                            model_args; since its version 6 also processor_kwargs and so on
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.errors import CheckpointError
from model.loading.files import CONFIG, read_json
from model.loading.modules import home, read_modules, read_sentence

# where files are fetched from, and what else changes no number of a folder that is there
WHERE = {"token", "use_auth_token", "cache_dir", "revision", "code_revision"}
WHERE |= {"local_files_only", "force_download", "proxies", "use_fast"}
OF_CONFIG = WHERE | {"attn_implementation", "use_cache", "output_attentions", "return_dict"}
OF_CONFIG |= {"output_hidden_states", "dtype", "torch_dtype"}
# --dtype decides about the precision
OF_MODEL = OF_CONFIG | {"low_cpu_mem_usage", "use_safetensors", "device_map", "add_pooling_layer"}
REFUSED = {  # of tokenizer_args: they name other files, or put tokens around texts
    *("add_bos_token", "add_eos_token", "config", "fast_tokenizer_files", "fix_mistral_regex"),
    *("from_slow", "gguf_file", "mistral_format", "subfolder", "tokenizer_file"),
    *("tokenizer_object", "tokenizer_type", "vocab", "vocab_file", "merges", "merges_file"),
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What is laid over two files.

    Args:
        tokenizer: over tokenizer_config.json.
        config: over config.json.
    """

    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


def read_arguments(folder: Path) -> Arguments:
    """The arguments of a folder; none in one without modules.json, where they are not read.

    Raises:
        CheckpointError: they are no objects, or one is not followed here.
    """
    if not read_modules(folder):
        return Arguments()
    stored = read_sentence(home(folder))
    tokenizer = _one(stored, "tokenizer_args", "processor_kwargs")
    config = _one(stored, "config_args", "config_kwargs")
    model = _one(stored, "model_args", "model_kwargs")
    _refuse("tokenizer_args", REFUSED & tokenizer.keys())
    _refuse("model_args", model.keys() - OF_MODEL)
    return Arguments(
        {key: value for key, value in tokenizer.items() if key not in WHERE},
        {key: value for key, value in config.items() if key not in OF_CONFIG},
    )


def read_raw(folder: Path) -> Any:
    """config.json with the arguments over it.

    Raises:
        CheckpointError: it is missing or broken, or an argument is none of its keys.
    """
    raw, over = read_json(home(folder) / CONFIG), read_arguments(folder).config
    if over and isinstance(raw, Mapping):
        # a key that it lacks may be another name of one that it has, or nothing to transformers
        _refuse("config_args", (over.keys() - raw.keys()) | ({"model_type"} & over.keys()))
        return {**raw, **over}
    return raw


def says_hidden_states(folder: Path, raw: Mapping[str, Any]) -> bool:
    """Whether transformers is to hand all hidden states on; nothing but a blend asks.

    Args:
        raw: config.json.
    """
    name = "output_hidden_states"
    over = _one(read_sentence(home(folder)), "config_args", "config_kwargs")
    return bool(over.get(name, raw.get(name, False)))


def _one(stored: Mapping[str, Any], old: str, new: str) -> Mapping[str, Any]:
    """Arguments under either name; where both are there, the older, as in the library."""
    found = stored[old] if old in stored else stored.get(new, {})
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{old if old in stored else new} is not an object: {found!r}")
    # what they say of trust the library drops, as none is had in a folder's code
    return {key: value for key, value in found.items() if not key.startswith("trust_")}


def _refuse(name: str, keys: set[str]) -> None:
    if keys:
        raise CheckpointError(f"{name}: not supported: {', '.join(sorted(keys))}")
