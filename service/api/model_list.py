"""GET /v1/models: one document, which clients of OpenAI and of TypeSafe read.

OpenAI's find each model in `data`, TypeSafe's in `models`.
"""

from collections.abc import Sequence
from typing import Any

from service.api.dialect import RouteContext, json_reply
from service.pipeline.find.names import find_name
from service.shapes.call import Reply, RequestHead
from service.tables.wording.words import list_names

DECIDES = "It decides, with the probabilities that its own temperatures make."
INFERS = (
    "It decides by natural language inference: nobody has calibrated its probabilities for that."
)


async def answer_models(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v1/models: each served model, alone and with each of its adapters."""
    names, replica = context.names(head), context.replica
    own = replica.name, replica.lanes.model.tasks, replica.released
    told = [(model.name, model.tasks, model.released) for model in context.models(head)]
    return json_reply(
        {
            "object": "list",
            "data": [_describe_model(name) for name in names],
            "models": [
                {"name": name, "description": _describe_tasks(tasks), "release_date": released}
                for model, tasks, released in told or [own]
                for name in names
                if name == model or name.startswith(f"{model}:")
            ],
        }
    )


async def answer_model(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v1/models/{id}; raises Refused where the id is none of them."""
    name = find_name(head.path_params["id"], context.names(head))
    return json_reply(_describe_model(name))


def _describe_model(name: str) -> dict[str, Any]:
    """Return a model as OpenAI's API lists it; `created` is 0, as no checkpoint records it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "headlight"}


def _describe_tasks(tasks: Sequence[str]) -> str:
    """Return what answers, in words; a model that has not started yet has no tasks."""
    if not tasks:
        return "A model that starts."
    said = f"A transformer encoder, for the tasks {list_names(tasks, 'and')}."
    if "decide" in tasks:
        return f"{said} {DECIDES}"
    return f"{said} {INFERS}" if "zero_shot" in tasks else said
