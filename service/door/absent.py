"""A request for a path that no route has: which one was probably meant, and whose words refuse it.

A client with a wrong base URL, or of an API that is not served, shows its user what its own API's
errors have: `error.message`, `error`, `message` or `detail`. So the refusal is written in that
API's form and as RFC 9457 has it, both in one object.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import orjson

from service.api import ROUTES, openai, own
from service.door.request import Endpoint
from service.shapes.call import RefusalWriter, Reply
from service.tables.refusals import MEDIA_TYPE, Refused

# Paths of other servers -> ours for the nearest purpose, and one whose API words errors alike
PATHS_ELSEWHERE = {
    "/api/embed": ("/v1/embeddings", "/embed"),  # Ollama's; the next as well
    "/api/tags": ("/v1/models", "/embed"),
    # Ollama's too, whose clients also show an object; OpenAI's ask it by a base_url of /api
    "/api/embeddings": ("/v1/embeddings", "/v1/embeddings"),
    "/embedding": ("/v1/embeddings", "/v1/embeddings"),  # llama.cpp's
    "/score": ("/v1/rerank", "/v1/rerank"),  # vLLM's
    "/v1/embed": ("/v2/embed", "/v2/embed"),  # Cohere's first version
}
# Paths that generate text, which no path of ours does
GENERATING_PATHS = {
    "/chat/completions": ("/v1/embeddings", "/v1/embeddings"),  # OpenAI's; the next two as well
    "/completions": ("/v1/embeddings", "/v1/embeddings"),
    "/responses": ("/v1/embeddings", "/v1/embeddings"),
    "/api/chat": ("/v1/embeddings", "/embed"),  # Ollama's; the next as well
    "/api/generate": ("/v1/embeddings", "/embed"),
    "/generate": ("/embed", "/embed"),  # Text Generation Inference's
    "/v2/chat": ("/v2/embed", "/v2/embed"),  # Cohere's; the next as well
    "/v1/chat": ("/v2/embed", "/v2/embed"),
}
PROTOCOL_PATH = "/v2"  # the Open Inference Protocol's
OPENAI_PREFIX = "/v1"  # in which the base URL of OpenAI's clients ends
POST_PATHS = dict.fromkeys(row.path for row in ROUTES if row.method == "post")
PLAIN_PATHS = dict.fromkeys(
    row.path for row in ROUTES if "{" not in row.path and "/page/" not in row.path
)
OPENAI_PATHS = {row.path for row in openai.ROUTES if row.path in PLAIN_PATHS}
# Details of refusals
PATHS_HINT = f"expected POST of {', '.join(POST_PATHS)}; GET /docs lists all paths"
LONGER_BASE = " Your client's base URL has more than this service's."
OPENAI_BASE = " The base_url of OpenAI's clients ends in /v1."
NO_TEXT = " This service generates no text."
MOST_SEGMENTS = 8  # of a path's end that are looked up; ours have six
MOST_COMPARED, LEAST_SIMILARITY = 48, 0.8  # characters of a path compared with ours; 1: equal

Endpoints = Mapping[str, Endpoint]  # of one path, by method
Lookup = Callable[[str], Endpoints]  # returns the endpoints of a path; none where it is no route's


class Meant(NamedTuple):
    """What a path probably means.

    Args:
        endpoints: of the path that was meant.
        word: writes refusals in the form that its client reads.
        hint: what the refusal adds.
    """

    endpoints: Endpoints
    word: RefusalWriter
    hint: str = ""


def word_of_path(path: str, find: Lookup) -> RefusalWriter:
    """Return what writes the refusals of an absent path.

    Where none is meant it is as the Open Inference Protocol has it below its own path, else as
    OpenAI has it, whose clients are most.
    """
    if meant := _find_end(path, find):
        return partial(_word, meant.word)
    is_protocol = path.startswith(f"{PROTOCOL_PATH}/")
    return partial(_word, _any_of(find(PROTOCOL_PATH)).word if is_protocol else openai.problem)


def refuse_path(method: str, path: str, find: Lookup) -> Refused:
    """Return the refusal of an absent path, with the path that was probably meant."""
    meant = _find_end(path, find) or _find_similar(path, find)
    if meant is None:
        return Refused("not_found", detail=PATHS_HINT)
    usual = "POST" if "POST" in meant.endpoints else "GET"
    method = method if method in meant.endpoints else usual
    place = f"{method} {meant.endpoints[method].path}"
    detail = f"did you mean {place}?{meant.hint} GET /docs lists all paths"
    return Refused("not_found", detail=detail)


def _find_end(path: str, find: Lookup) -> Meant | None:
    """Return what the end of a path means, if that is a route's or another server's."""
    for end in _ends_of(path):
        if places := PATHS_ELSEWHERE.get(end) or GENERATING_PATHS.get(end):
            ours, alike = places
            hint = NO_TEXT if end in GENERATING_PATHS else ""
            return Meant(find(ours), _any_of(find(alike)).word, hint)
        usual = f"{OPENAI_PREFIX}{end}"
        if endpoints := find(usual if usual in OPENAI_PATHS else end):
            word = _any_of(endpoints).word
            return Meant(endpoints, word, OPENAI_BASE if word is openai.problem else LONGER_BASE)
    return None


def _find_similar(path: str, find: Lookup) -> Meant | None:
    """Return what a path means that is written almost as a route's."""
    if len(path) > MOST_COMPARED:
        return None
    similar = difflib.get_close_matches(path, PLAIN_PATHS, n=1, cutoff=LEAST_SIMILARITY)
    return Meant(find(similar[0]), openai.problem) if similar else None


def _ends_of(path: str) -> Iterator[str]:
    """Yield the ends of a path by segments, the longest first: of /a/b, /a/b and /b."""
    segments = path.split("/")[-MOST_SEGMENTS:]
    for start in range(len(segments)):
        if end := "/".join(segments[start:]).strip("/"):
            yield f"/{end}"


def _any_of(endpoints: Endpoints) -> Endpoint:
    """Return one of a path's endpoints, which are of one API."""
    return next(iter(endpoints.values()))


def _word(word: RefusalWriter, refused: Refused, request_id: str) -> Reply:
    """Write a refusal in an API's form and as RFC 9457 has it, in one object."""
    theirs, ours = word(refused, request_id), own.problem(refused, request_id)
    both = [orjson.loads(b"".join(reply.pieces)) for reply in (ours, theirs)]
    body = {**both[0], **both[1], "status": theirs.status}
    return Reply(orjson.dumps(body), theirs.status, media_type=MEDIA_TYPE)
