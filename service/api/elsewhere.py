"""Paths that clients of other APIs ask for and that are not here: in whose words, and what to ask.

Clients print what their own API's errors say, and nothing of any other shape.
"""

import re
from typing import NamedTuple

from service.api import openai, rerank, tei
from service.api.dialect import Wording
from service.api.native import call as native
from service.api.open_inference import call as open_inference
from service.api.operations import OPERATIONS
from service.wording.words import nearest

FIXED = {
    row.path: row.api.problem
    for row in reversed(OPERATIONS)
    if "{" not in row.path and len(row.path) > len("/v2")
}
# what addresses are given with, or without, that should not be
EXTRA = re.compile(r"/(?:v\d+|api|openai)(?=/)")
MOST_VARIANTS = 4
NOTHING = "GET /docs lists the paths"


class Family(NamedTuple):
    """Routes of another API that have no counterpart here.

    Args:
        paths: the whole of a path.
        instead: what to ask.
    """

    paths: re.Pattern[str]
    say: Wording
    instead: str


FAMILIES = (
    Family(
        re.compile(
            r"(?!/v2/)(?:/\w+)*/(?:chat/completions|completions|responses|moderations"
            r"|(?:audio|batches|files|images|assistants|threads|models)(?:/.*)?)"
        ),
        openai.problem,
        "this service generates nothing; of OpenAI's API it has POST /v1/embeddings and "
        "GET /v1/models",
    ),
    Family(
        re.compile(r"/v[12]/(?:embed|embed-jobs|chat|classify|tokenize|detokenize|summarize)"),
        rerank.problem,
        "of Cohere's API this service has POST /v2/embed, /v1/rerank and /v2/rerank",
    ),
    Family(
        re.compile(r"/(?:generate|generate_stream|invocations|vertex|predictions(?:/.*)?)"),
        tei.problem,
        "of Text Embeddings Inference this service has POST /embed, /rerank and /predict",
    ),
    Family(re.compile(r"/v2/(?:health|models)(?:/.*)?"), open_inference.problem, NOTHING),
)


def refuse(path: str) -> tuple[Wording, str]:
    """Return how to word that there is nothing at a path, and what was probably meant."""
    plain = path.rstrip("/")
    family = next((each for each in FAMILIES if each.paths.fullmatch(plain)), None)
    if family and plain not in FIXED:
        return family.say, family.instead
    same = [one for one in FIXED if one.split("/")[1] in path.split("/")[1:2]]
    meant = next((one for one in _variants(plain) if one in FIXED), "")
    if meant := meant or nearest(path, same) or nearest(path, FIXED):
        return FIXED[meant], f'did you mean "{meant}"?'
    return open_inference.problem if path.startswith("/v2/") else native.problem, NOTHING


def _variants(path: str) -> list[str]:
    """Return a path without what was given twice, and with the version that was left out."""
    bare, variants = path, [path]
    while (found := EXTRA.match(bare)) and len(variants) < MOST_VARIANTS:
        bare = bare[found.end() :]
        variants.append(bare)
    return [*variants, f"/v1{path}", f"/v1{bare}"]
