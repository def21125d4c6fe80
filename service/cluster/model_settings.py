"""The settings of a service with several models: which are each model's own, which they share."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.cluster.choose_model import TAKEN
from service.tables.cores import count_cores
from service.tables.settings import Settings
from service.tables.sources import read_file, settle

MODELS = "models"  # the list in a YAML file
# What a model of the list may say for itself; all others belong to the address, the machine or Ray
OWN = frozenset(
    (
        *("model", "adapter", "served_model_name", "max_tokens", "max_question_tokens", "truncate"),
        *("replicas", "min_replicas", "max_replicas", "downscale_delay_seconds", "threads"),
        *("device", "dtype", "require_same_bits", "batch_tokens", "max_waiting_requests"),
        "max_waiting_tokens",
    )
)

# Replicas' threads that may share a core: a batch that takes ten times as long counts as stuck
MOST_SHARING = 4
APPLICATION = "headlight"  # the name in Ray Serve of the first model, where we deploy it


def load_models(
    named: Sequence[str],
    flags: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> list[Settings]:
    """Settle the settings of each model; what it says for itself goes before what all say.

    Args:
        named: the models by name alone, of the command line.
        flags, environ, file: as for `load_settings`; the file may hold a list, `models`.

    Raises:
        ValueError, OSError: as load_settings; or the models are named twice, two of them alike, one
            like a path of the service, or they need many more cores than there are.
    """
    document = dict(read_file(file))
    listed = _read_list(document.pop(MODELS, None))
    if listed and (named or flags.get("model")):
        raise ValueError(f"{file} lists its models: leave them out of the command")
    own = listed or [{"model": name} for name in named] or [{}]
    places = [f"{MODELS}[{number}]." if listed else "" for number in range(len(own))]
    found = [
        settle(flags, environ, document, each, place)
        for each, place in zip(own, places, strict=True)
    ]
    if len(found) == 1:
        return found
    prefixes = [path_name(each) for each in found]
    if twice := sorted({name for name in prefixes if prefixes.count(name) > 1}):
        raise ValueError(f"two models are called {twice[0]}: give one a served_model_name")
    for each, prefix in list(zip(found, prefixes, strict=True))[1:]:
        if prefix in {*TAKEN, APPLICATION} or not prefix.strip("."):
            raise ValueError(
                f"{each.model} would be at /{prefix}, which is no model's place: "
                "give it another served_model_name"
            )
    every = sum(each.most_replicas for each in found)
    found = [
        each.model_copy(update={"other_replicas": every - each.most_replicas}) for each in found
    ]
    _refuse_excess_threads(found)
    return found


def path_name(settings: Settings) -> str:
    """Return the prefix below which a model of several is mounted, without its slash."""
    name = settings.served_model_name or settings.model.partition("@")[0].rstrip("/")
    return re.sub(r"[^a-z0-9._-]+", "-", name.rpartition("/")[2].rpartition(":")[2].lower())


def _read_list(listed: object) -> list[dict[str, Any]]:
    """Return what each model of a file's list says.

    Raises:
        ValueError: it is no list of models' own settings.
    """
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError("models: expected a list of settings, each with a `model`")
    for number, each in enumerate(listed):
        if "model" not in each:
            raise ValueError(f"{MODELS}[{number}]: has no `model`")
        if foreign := sorted(each.keys() - OWN):
            raise ValueError(f"{MODELS}[{number}].{foreign[0]}: belongs to all, not to one model")
    return listed


def count_threads(models: Iterable[Settings]) -> int:
    """Return the cores that all replicas would keep busy: at least one each."""
    return sum(each.most_replicas * (each.threads or 1) for each in models)


def _refuse_excess_threads(models: Sequence[Settings]) -> None:
    """Refuse a model that this machine has too few cores for, or so many that all would hang."""
    here = count_cores()
    if models[0].address is not None or models[0].device == "cuda":
        return
    for each in models:
        if (own := count_threads([each])) > here:
            raise ValueError(
                f"{each.model} needs {own} cores (threads x replicas), but this machine has only "
                f"{here}"
            )
    if (needed := count_threads(models)) > MOST_SHARING * here:
        raise ValueError(
            f"the models need {needed} cores (threads x replicas, at least 1 a replica); they may "
            f"share this machine's, {here}, up to {MOST_SHARING} to one"
        )
