"""A Router of a SparseEncoder: documents by the encoder, queries by a table of weights.

modules.json                            Router
router_config.json                      which modules each route has
document_0_Transformer/                 the encoder, with its task head over the vocabulary
document_1_SpladePooling/config.json
query_0_SparseStaticEmbedding/          tokenizer.json, and a weight for each token

Source: sentence-transformers 6.2, base/modules/router.py and sparse_static_embedding.py.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from model.config import Side
from model.errors import CheckpointError
from model.loading.files import CONFIG, TOKENIZER, read_object
from model.loading.modules import ROUTER, TRANSFORMERS, home, read_optional, read_routes
from model.loading.pipeline import layers
from model.loading.pipeline.keys import check_keys
from model.loading.tensors import Shape, check, open_tensors
from model.loading.tokenizer_settings import TOKENIZER_CONFIG
from model.task_heads import Splade
from model.text.frame import Role
from model.text.tokenizer import Tokenizer

SIDES = ("query", "document")
STATIC = "SparseStaticEmbedding"
FREE = ("truncation", "padding")  # of a tokenizer.json, which a call sets


def read_sides(
    folder: Path,
    head: Splade,
    tokenizer: Tokenizer,
    max_tokens: int,
    prompts: Mapping[str, str],
    device: torch.device,
) -> Splade:
    """Return a SparseEncoder's task head with how either side of a search is read and weighed.

    Raises:
        CheckpointError: a route, or a choice, that is not supported; the message names it.
    """
    query, document = (Role(max_tokens, prompt=prompts.get(side, "")) for side in SIDES)
    if not (routes := read_routes(folder)):
        return replace(head, roles={"query": query, "document": document})
    default: Side = "query" if _default(folder, routes) == "query" else "document"
    (kind, path), *_ = routes["query"]
    check_keys(kind, read_optional(path / CONFIG), path.name)
    if _tokens(path) != _tokens(home(folder)) or tokenizer.lower_case:
        raise CheckpointError(f"{path.name}: not supported: another tokenizer than the encoder's")
    longest = read_optional(path / TOKENIZER_CONFIG).get("model_max_length") or max_tokens
    query = replace(query, length=min(int(longest), max_tokens), bare=tokenizer.around)
    table = _table(path, head.project.outputs).to(device)
    return replace(head, roles={"query": query, "document": document}, default=default, table=table)


def check_routes(folder: Path) -> None:
    """Refuse every Router except the one that is supported here.

    Raises:
        CheckpointError: names its routes, or the choice.
    """
    if not (routes := read_routes(folder)):
        return
    kinds = {name: [kind for kind, _ in modules] for name, modules in routes.items()}
    of_documents = [[kind, "SpladePooling"] for kind in TRANSFORMERS]
    if kinds not in [{"query": [STATIC], "document": each} for each in of_documents]:
        told = "; ".join(f"{name} by {', '.join(each)}" for name, each in kinds.items())
        raise CheckpointError(f"{ROUTER}: not supported: {told or 'no route'}")
    choices = read_object(folder / ROUTER).get("parameters", {})
    known = {"default_route", "allow_empty_key", "route_mappings"}
    wrong = [f"unknown key {key!r}" for key in choices if key not in known]
    if choices.get("route_mappings"):
        wrong.append(f"route_mappings {choices['route_mappings']!r}")
    if _default(folder, routes) not in SIDES:
        wrong.append(f"default_route {_default(folder, routes)!r}")
    if wrong:
        raise CheckpointError(f"{ROUTER}: not supported: {', '.join(wrong)}")


def _default(folder: Path, routes: Iterable[str]) -> str | None:
    """Return the route of a text whose side is not given."""
    choices = read_object(folder / ROUTER).get("parameters", {})
    stored: str | None = choices.get("default_route")
    return next(iter(routes)) if stored is None and choices.get("allow_empty_key", True) else stored


def _table(folder: Path, tokens: int) -> Tensor:
    """Return the weight of each token of a query, (tokens,) float32."""
    path, where = layers.weights(folder)
    shapes: dict[str, Shape] = {"weight": (tokens,)}
    with open_tensors({where: path}) as tensors:
        check(tensors, shapes, where)
        table: Tensor = tensors["weight"].read().float().clone()
    if bool((table < 0).any()):
        raise CheckpointError(f"{where}: not supported: weights below 0")
    return table


def _tokens(folder: Path) -> str:
    """Return a tokenizer.json without what a call sets."""
    stored = read_object(folder / TOKENIZER)
    return json.dumps({key: value for key, value in stored.items() if key not in FREE})
