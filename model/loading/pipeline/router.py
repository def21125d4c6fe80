"""Read a SparseEncoder's Router: the model is that of its document route.

modules.json                            Router
router_config.json                      which modules each route has
document_0_Transformer/                 the encoder, with its task head over the vocabulary
document_1_SpladePooling/config.json
query_0_SparseStaticEmbedding/          a table of weights, which is not read

Source: sentence-transformers 6.2, base/modules/router.py.
"""

from collections.abc import Mapping
from pathlib import Path

from model.config import Side
from model.errors import refuse_unsupported
from model.loading.files import read_object
from model.loading.modules import ROUTER_FILE, TRANSFORMER_KINDS, read_routes
from model.text.frame import Role

BOTH_SIDES: tuple[Side, ...] = ("query", "document")
STATIC_EMBEDDING = "SparseStaticEmbedding"  # the module with a table of queries' weights


def check_routes(folder: Path) -> None:
    """Refuse a Router of other routes or settings than are supported; accept a folder without one.

    Raises:
        CheckpointError: names its routes, or the setting.
    """
    if not (routes := read_routes(folder)):
        return
    kinds = {name: [kind for kind, _ in modules] for name, modules in routes.items()}
    document_routes = [[kind, "SpladePooling"] for kind in TRANSFORMER_KINDS]
    if kinds not in [{"query": [STATIC_EMBEDDING], "document": each} for each in document_routes]:
        problem = "; ".join(f"{name} by {', '.join(each)}" for name, each in kinds.items())
        refuse_unsupported(ROUTER_FILE, problem or "no route")
    choices = read_object(folder / ROUTER_FILE).get("parameters", {})
    known = {"default_route", "allow_empty_key", "route_mappings"}
    wrong = [f"unknown key {key!r}" for key in choices if key not in known]
    if choices.get("route_mappings"):
        wrong.append(f"route_mappings {choices['route_mappings']!r}")
    default = choices.get("default_route")
    if default is None and choices.get("allow_empty_key", True):
        default = next(iter(routes))
    if default != "document":  # a text of no side would be looked up in the table
        wrong.append(f"default_route {default!r}; write 'document' if texts are documents")
    refuse_unsupported(ROUTER_FILE, *wrong)


def read_roles(folder: Path, max_tokens: int, prompts: Mapping[str, str]) -> dict[Side, Role]:
    """Return how a SparseEncoder reads queries and documents; with a Router documents alone."""
    sides = BOTH_SIDES[1:] if read_routes(folder) else BOTH_SIDES
    return {side: Role(max_tokens, prompt=prompts.get(side, "")) for side in sides}
