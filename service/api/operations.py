"""Every route as the API document shows it: what it takes, answers and may refuse."""

from importlib.resources import files
from typing import Any

import yaml

from service.api import (
    cohere,
    highlight,
    open_inference,
    openai,
    operating,
    pages,
    questions,
    rerank,
    teaching,
    tei,
    zero_shot,
)
from service.api.dialect import ANY, NATIVE, Api, Example, Route
from service.api.native import call as native
from service.encode.answer import SAFETENSORS
from service.observe.families import INPUTS, OF_TEXT

# what types cannot express: a sentence for each route, examples, parameters, descriptions
NOTES: dict[str, Any] = yaml.safe_load(files("service.api").joinpath("notes.yaml").read_bytes())
BYTES = {"type": "string", "format": "binary"}


def _get(api: Api, path: str, answer: str = ANY, **more: Any) -> Route:
    return Route(api, "get", path, NOTES["summaries"][path], answer=answer, **_notes(path), **more)


def _post(api: Api, path: str, request: Any, **more: Any) -> Route:
    summary = NOTES["summaries"][path]
    return Route(api, "post", path, summary, request, **_notes(path), **more)


def _notes(path: str) -> dict[str, Any]:
    notes: dict[str, Any] = NOTES["paths"].get(path, {})
    shown = notes.get("examples", {}).items()
    examples = [
        Example(name, each["summary"], each["value"], each.get("x-query", ""))
        for name, each in shown
    ]
    return {**notes, "examples": examples}


COMPARED, MATCHED = questions.ComparisonRequest, questions.MaxsimRequest
OF_ALL = {"inputs": INPUTS, "answer_media": {SAFETENSORS: BYTES}}  # answered as a file too
OPERATIONS = (
    _post(
        NATIVE,
        "/v1/encode",
        native.EncodeRequest,
        parse=native.parse,
        answer="Answer | Priced",
        **OF_ALL,
    ),
    _post(
        NATIVE,
        "/v1/similarity",
        COMPARED,
        parse=questions.similarity,
        answer="Compared | Priced",
        **OF_ALL,
    ),
    _post(
        NATIVE,
        "/v1/maxsim",
        MATCHED,
        parse=questions.maxsim,
        answer="Matched | Priced",
        **OF_ALL,
    ),
    _post(
        NATIVE,
        "/v1/classify",
        zero_shot.ZeroShotRequest,
        parse=zero_shot.parse,
        answer="Classified | Priced",
        inputs=OF_TEXT,
    ),
    _post(
        NATIVE,
        "/v1/highlight",
        highlight.HighlightRequest,
        parse=highlight.parse,
        answer="Highlighted | Priced",
        inputs=(*OF_TEXT, "mixed"),  # documents are texts
    ),
    *teaching.ROUTES,
    *operating.ROUTES,
    *openai.ROUTES,
    *tei.ROUTES,
    *rerank.ROUTES,
    *cohere.ROUTES,
    *open_inference.ROUTES,
    *pages.ROUTES,
)
