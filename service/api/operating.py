"""The routes for operators: health, the model and its limits, metrics."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from service.api.dialect import RouteContext, json_reply
from service.api.own import NATIVE
from service.api.query import read_choice
from service.observe.metrics import OPENMETRICS_TYPE, TEXT_TYPE
from service.observe.scrape import join_pages
from service.pipeline.find.names import only_sparse
from service.shapes.call import ANY_ROUTE_CODES, READ_ROUTE_CODES, Reply, RequestHead
from service.tables.cores import count_cores
from service.tables.refusals import Refused

METRICS_SCOPES = ("all", "replica")  # values of GET /metrics?scope=: whose metrics the page holds
LATE_CODES = ("overloaded", "deadline_unreachable", "deadline_exceeded")  # GET /v1/heads computes


async def answer_heads(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /v1/heads: what each head of the model does, as measured."""
    return json_reply(await context.replica.heads.answer(context.deadline(head)))


async def answer_live(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /live: the process answers."""
    return json_reply({"status": "live"})


async def answer_ready(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /ready: the forward path proved itself lately, of several models that of any."""
    unready = context.find_unready(head)
    return json_reply({"status": "ready", **({"not_ready": unready} if unready else {})})


async def answer_info(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /info: the model, the limits, and the fields of TEI's GET /info."""
    replica, workers = context.replica, count_cores()
    info, classes = replica.info(), replica.lanes.model.classes
    cuts = replica.settings.truncate != "refuse"
    info |= _tei_info(info, classes, workers, auto_truncate=cuts)
    if models := context.models(head):
        info["models"] = [
            {"name": model.name, "tasks": model.tasks, "prefix": model.prefix} for model in models
        ]
    return json_reply(info)


def _tei_info(
    info: Mapping[str, Any], classes: Sequence[str], workers: int, *, auto_truncate: bool
) -> dict[str, Any]:
    """Return the fields of TEI's GET /info.

    Args:
        info: the fields of our own GET /info.
        classes: their names, if the model has any.
        workers: threads that tokenize.
        auto_truncate: whether an input that is too long is cut where a request does not say.
    """
    limits = info["limits"]
    return {
        "model_id": info["model"],
        "model_sha": info["revision"],
        "model_dtype": info["dtype"],
        "served_model_name": info["model"],
        "model_type": _model_type(info, classes),
        "max_concurrent_requests": limits["max_waiting_requests"],
        "max_input_length": info["max_tokens"],
        "max_batch_tokens": limits["batch_tokens"],
        "max_batch_requests": None,
        "max_client_batch_size": limits["max_sequences"],
        "auto_truncate": auto_truncate,
        "tokenization_workers": workers,
        "version": info["versions"]["headlight"],
        "sha": None,
        "docker_label": None,
    }


def _model_type(info: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Return TEI's model_type: embedding, reranker or classifier, with its details."""
    if "classify" not in info["tasks"]:
        pooling = "splade" if only_sparse(info["tasks"]) else info["pooling"]
        return {"embedding": {"pooling": pooling}}
    names = {
        "id2label": {str(place): label for place, label in enumerate(classes)},
        "label2id": {label: place for place, label in enumerate(classes)},
    }
    return {"reranker" if "rerank" in info["tasks"] else "classifier": names}


async def answer_metrics(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /metrics: every replica's metrics, at the root of every model, or this one's."""
    openmetrics = _prefers_openmetrics(head.headers.get("accept", ""))
    media_type = OPENMETRICS_TYPE if openmetrics else TEXT_TYPE
    if read_choice(head.query, "scope", METRICS_SCOPES) == "replica":
        write = context.replica.freeze_metrics(openmetrics)
        page = await asyncio.to_thread(lambda: join_pages([write()], False, openmetrics))
    else:
        page = await context.scrape(openmetrics, not head.root_path)
    return Reply(page, 200, {"vary": "accept"}, media_type)


def _prefers_openmetrics(accept: str) -> bool:
    """Tell whether an Accept header names OpenMetrics; a scraper that reads it prefers it."""
    names = (part.partition(";")[0].strip() for part in accept.lower().split(","))
    return OPENMETRICS_TYPE.partition(";")[0] in names


async def answer_targets(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /metrics/targets: the replicas' addresses, for Prometheus's HTTP discovery."""
    if context.targets is None:
        raise Refused("not_found", detail="replicas have no addresses of their own here")
    groups = await context.targets(not head.root_path)
    return json_reply(
        [
            {
                "targets": targets,
                "labels": {"__metrics_path__": f"{prefix}/metrics", "__param_scope": "replica"},
            }
            for prefix, targets in groups.items()
        ]
    )


_get = NATIVE.get
ROUTES = [
    _get(
        "/v1/heads",
        "What each head of the model does, as measured",
        answers=answer_heads,
        kind="Heads",
        codes=(*READ_ROUTE_CODES, *LATE_CODES),
    ),
    _get(
        "/live",
        "The process answers",
        answers=answer_live,
        kind="Live",
        public="always",
        trusted=False,
    ),
    _get(
        "/ready",
        "The forward path lately proved itself",
        answers=answer_ready,
        kind="Ready",
        public="always",
    ),
    _get("/info", "The model and its limits", answers=answer_info, kind="Info"),
    _get(
        "/metrics",
        "Every replica's metrics, as Prometheus text or OpenMetrics",
        answers=answer_metrics,
        kind="",
        answer_media=dict.fromkeys(
            form.partition(";")[0] for form in (TEXT_TYPE, OPENMETRICS_TYPE)
        ),
        codes=(*ANY_ROUTE_CODES, "out_of_range"),
        public="public_metrics",
        trusted=False,
        parameters=[
            {
                "name": "scope",
                "in": "query",
                "description": "all gathers every replica's metrics into one page; replica "
                "answers with those of the replica that is asked, for scrapers that ask each one "
                "at its own address (GET /metrics/targets).",
                "schema": {"enum": [*METRICS_SCOPES], "default": METRICS_SCOPES[0]},
            }
        ],
    ),
    _get(
        "/metrics/targets",
        "Where Prometheus finds each replica by itself",
        answers=answer_targets,
        kind="Targets",
        codes=(*READ_ROUTE_CODES, "not_found"),
        public="public_metrics",
        metric="/metrics",
    ),
]
