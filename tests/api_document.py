"""Holds an answer against the document of the API."""

import httpx
from jsonschema import Draft202012Validator

from service.api.document import document


def hold(path: str, answer: httpx.Response) -> None:
    """Check that the JSON that a POST was answered with is what the document describes."""
    responses = document()["paths"][path]["post"]["responses"]
    described = responses[str(answer.status_code)]["content"][answer.headers["content-type"]]
    schema = {**described["schema"], "components": document()["components"]}
    Draft202012Validator(schema).validate(answer.json())
