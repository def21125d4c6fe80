"""Read the list of sentence-transformers' modules of a folder, and their arguments.

modules.json                Transformer, Pooling, Dense .., Normalize, in this order; PyLate's Dense
                            per token
sentence_bert_config.json   arguments for transformers: tokenizer_args over tokenizer_config.json,
                            config_args over config.json, model_args; since version 6 also
                            processor_kwargs and so on
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.errors import CheckpointError, refuse_unsupported
from model.families import find_family
from model.loading.files import CONFIG, LAYA, WEIGHTS, ModelFolders, read_json, read_object

MODULES_FILE = "modules.json"  # the list of modules
PROMPTS_FILE = "config_sentence_transformers.json"  # prompts, and settings of the whole model
ROUTER_FILE = "router_config.json"  # the modules of each route
# which sentence-transformers tries for its Transformer, in this order
TRANSFORMER_SETTINGS_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TRANSFORMER_KINDS = ("Transformer", "MLMTransformer")  # modules that hold the encoder
LOGIT_SCORE = "LogitScore"  # the module of a generative reranker
JINA_TRANSFORMER = "custom_st.Transformer"  # of Jina's own code, with adapters for tasks
PYLATE_DENSE = "pylate.models.Dense.Dense"  # a Dense layer for each token


def read_optional(path: Path) -> Mapping[str, Any]:
    """Return the object of a JSON file; an empty one if there is no such file."""
    return read_object(path) if path.is_file() else {}


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the kind and the folder of every module; none in a plain folder.

    For a Router, return the modules of the route for documents.
    """
    return read_routes(folder).get("document") or _list_modules(folder)


def read_routes(folder: Path) -> Mapping[str, list[tuple[str, Path]]]:
    """Return the modules of each route of a Router, by name; none without a Router."""
    if [kind for kind, _ in _list_modules(folder)] != ["Router"]:
        return {}
    stored = read_object(folder / ROUTER_FILE)
    try:
        types, structure = stored["types"], stored["structure"]
        routes = {
            str(name): [
                (_strip_module_path(types[key]), _resolve_inside(folder, key)) for key in keys
            ]
            for name, keys in structure.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{ROUTER_FILE} has a route without types and structure") from error
    return routes


def find_folders(folder: Path) -> ModelFolders:
    """Return where a model's files are: in a folder of a Transformer, most often `folder` itself.

    Laya's have folders by kind.
    """
    if (folder / LAYA).is_file():
        return ModelFolders(folder / "encoder", folder / "tokenizer", folder)
    kind, path = next(iter(read_modules(folder)), ("", folder))
    own = path if kind in TRANSFORMER_KINDS else folder
    return ModelFolders(own, own, own)


def find_encoder_folder(folder: Path) -> Path:
    """Return the folder of the encoder's config.json."""
    return find_folders(folder).encoder


def find_misfit(
    kinds: Sequence[str], places: Sequence[str], rest: Collection[str] = ()
) -> str | None:
    """Describe the first module of an unsupported kind for its place; None: all fit.

    Args:
        kinds: of the modules, in order.
        places: the kinds of the first modules, in order.
        rest: the kinds that may follow.
    """
    for number, kind in enumerate(kinds, 1):
        if kind not in ([places[number - 1]] if number <= len(places) else rest):
            return f"{kind}, module {number} of {len(kinds)}"
    return f"no {places[len(kinds)]}" if len(kinds) < len(places) else None


def _list_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the kind and the folder of each module of modules.json; none without the file."""
    if not (folder / MODULES_FILE).is_file():
        return []
    try:
        return [
            (
                _kind_of_jina(_strip_module_path(entry["type"]), folder),
                _resolve_inside(folder, entry["path"]),
            )
            for entry in read_json(folder / MODULES_FILE)
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{MODULES_FILE} has an entry without type and path") from error


def _resolve_inside(folder: Path, name: str) -> Path:
    """Return the path of a module's folder.

    Raises:
        CheckpointError: it lies outside `folder`.
    """
    path = folder / name
    if ".." in path.parts or not path.absolute().is_relative_to(folder.absolute()):
        raise CheckpointError(f"{MODULES_FILE} names a folder outside: {path}")
    return path


def read_model_type(folder: Path) -> str | None:
    """Return the class, of sentence-transformers or PyLate, that saved a folder; None: not said."""
    stored = read_optional(folder / PROMPTS_FILE).get("model_type")
    return None if stored is None else str(stored)


def is_chained_reranker(folder: Path) -> bool:
    """Tell whether a folder has a CrossEncoder that scores by layers behind a Pooling."""
    kinds = [kind for kind, _ in read_modules(folder)]
    return kinds[1:2] == ["Pooling"] and read_model_type(folder) == "CrossEncoder"


def is_generative_reranker(folder: Path) -> bool:
    """Tell whether a folder has a CrossEncoder that scores by a decoder's next-token logits."""
    kinds = [kind for kind, _ in read_modules(folder)]
    return kinds == ["Transformer", LOGIT_SCORE] and read_model_type(folder) == "CrossEncoder"


def read_transformer_settings(folder: Path) -> Mapping[str, Any]:
    """Return sentence-transformers' settings of its Transformer: the first file with content."""
    configs = (read_optional(folder / name) for name in TRANSFORMER_SETTINGS_FILES)
    return next(filter(None, configs), {})


def _strip_module_path(name: str) -> str:
    """Return a class of sentence-transformers without its module path; another's with it."""
    # another library's class of the same name may compute anything
    return name.rpartition(".")[2] if name.startswith("sentence_transformers.") else name


def _kind_of_jina(kind: str, folder: Path) -> str:
    """Return "Transformer" for Jina's own in a folder with task adapters; else `kind`."""
    return "Transformer" if kind == JINA_TRANSFORMER and has_task_adapters(folder) else kind


def has_task_adapters(folder: Path) -> bool:
    """Tell whether a folder's checkpoint has its own adapters for tasks."""
    config = read_optional(folder / CONFIG)
    family = find_family(config)
    return family is not None and bool(family.tasks_key and config.get(family.tasks_key))


def find_token_layers(folder: Path) -> list[Path]:
    """Return the folders of a late interaction's Dense modules; none for other folders.

    PyLate writes its own class or, converted, that of sentence-transformers; without a Pooling.
    """
    if read_model_type(folder) == "MultiVectorEncoder":
        return [path for kind, path in read_modules(folder) if kind == "Dense"]
    (first, _), *others = read_modules(folder) or [("", folder)]
    kinds = {kind for kind, _ in others}
    is_pylate = read_model_type(folder) == "ColBERT" if kinds else False
    if first != "Transformer" or not kinds or not kinds <= {"Dense", PYLATE_DENSE}:
        return []
    return [path for _, path in others] if is_pylate or PYLATE_DENSE in kinds else []


def find_weighed_files(folder: Path) -> list[Path]:
    """Return the files of the modules that have weights, in a fixed order."""
    weighed = ("Dense", "LayerNorm", PYLATE_DENSE)
    paths = [path for kind, path in read_modules(folder) if kind in weighed]
    return [path / name for path in paths for name in (WEIGHTS, CONFIG)]


# arguments without effect on a local folder's answers: those of downloads
DOWNLOAD_ARGUMENTS = {"token", "use_auth_token", "cache_dir", "revision", "code_revision"}
DOWNLOAD_ARGUMENTS |= {"local_files_only", "force_download", "proxies", "use_fast"}
CONFIG_ARGUMENTS = DOWNLOAD_ARGUMENTS | {  # and those of config_args
    *("attn_implementation", "use_cache", "output_attentions", "return_dict")
}
CONFIG_ARGUMENTS |= {"output_hidden_states", "dtype", "torch_dtype"}
MODEL_ARGUMENTS = CONFIG_ARGUMENTS | {  # and those of model_args; --dtype decides the precision
    *("low_cpu_mem_usage", "use_safetensors", "device_map", "add_pooling_layer")
}
REFUSED_ARGUMENTS = {  # of tokenizer_args: they name other files, or put tokens around texts
    *("add_bos_token", "add_eos_token", "config", "fast_tokenizer_files", "fix_mistral_regex"),
    *("from_slow", "gguf_file", "mistral_format", "subfolder", "tokenizer_file"),
    *("tokenizer_object", "tokenizer_type", "vocab", "vocab_file", "merges", "merges_file"),
}


@dataclass(frozen=True, slots=True)
class ConfigOverrides:
    """Values that override those of two configuration files.

    Args:
        tokenizer: keys of tokenizer_config.json.
        config: keys of config.json.
    """

    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


def read_overrides(folder: Path) -> ConfigOverrides:
    """Return the overrides by a folder's arguments; none without modules.json.

    Raises:
        CheckpointError: they are not objects, or one is not supported here.
    """
    if not read_modules(folder):
        return ConfigOverrides()
    stored = read_transformer_settings(find_encoder_folder(folder))
    tokenizer = _read_either(stored, "tokenizer_args", "processor_kwargs")
    config = _read_either(stored, "config_args", "config_kwargs")
    model = _read_either(stored, "model_args", "model_kwargs")
    refuse_unsupported("tokenizer_args", *sorted(REFUSED_ARGUMENTS & tokenizer.keys()))
    refuse_unsupported("model_args", *sorted(model.keys() - MODEL_ARGUMENTS))
    return ConfigOverrides(
        {key: value for key, value in tokenizer.items() if key not in DOWNLOAD_ARGUMENTS},
        {key: value for key, value in config.items() if key not in CONFIG_ARGUMENTS},
    )


def read_raw_config(folder: Path) -> Any:
    """Return config.json with its overrides.

    Raises:
        CheckpointError: it is missing or broken, or an argument is not one of its keys.
    """
    raw, over = read_json(find_encoder_folder(folder) / CONFIG), read_overrides(folder).config
    if over and isinstance(raw, Mapping):
        # a key that config.json lacks may be an alias of one that it has, or unknown
        unknown = (over.keys() - raw.keys()) | ({"model_type"} & over.keys())
        refuse_unsupported("config_args", *sorted(unknown))
        return {**raw, **over}
    return raw


def _read_either(stored: Mapping[str, Any], old: str, new: str) -> Mapping[str, Any]:
    """Return arguments under their old or new key; the old one wins, as in the library."""
    arguments = stored[old] if old in stored else stored.get(new, {})
    if not isinstance(arguments, Mapping):
        raise CheckpointError(f"{old if old in stored else new} is not an object: {arguments!r}")
    # the library drops arguments about trust: a folder's code is not trusted
    return {key: value for key, value in arguments.items() if not key.startswith("trust_")}
