"""What Jina's clients add to OpenAI's POST /v1/embeddings: kinds of vectors, and tasks.

Deliberate differences: `late_chunking` is refused, since the API does not say how it joins inputs;
so are a list of kinds, whose answer has no documented shape, and a task that would change nothing.
Source of the request: https://api.jina.ai/openapi.json of April 2026, EmbeddingsV3Request and
EmbeddingsV5Request; the former name of `embedding_type`: llama-index-embeddings-jinaai 0.7.
"""

from service.api.dialect import Served
from service.api.inputs import find_prompt
from service.refusals import Refused
from service.wording.words import quoted

NO_PROMPT = (
    "this model has no adapter and no prompt for it, so it would change nothing: leave it out"
)
TOGETHER = (
    "each input is read alone here; `spans` of POST /v1/encode are vectors of the parts of one text"
)


def purpose(task: str | None, served: Served) -> tuple[str | None, str | None]:
    """Return the adapter and the name of the prompt that a task chooses.

    An adapter of its whole name brings its own instruction. One of the part before the dot, such as
    "retrieval", needs a prompt that tells queries from passages.

    Raises:
        Refused: the checkpoint has neither.
    """
    adapters = _adapters(served)
    if task is None or task in adapters:
        return task, None
    if (prompt := find_prompt(task, served)) is None:
        has = sorted(served.prompts)
        detail = NO_PROMPT
        if adapters:
            detail = f"{NO_PROMPT}; this model has the adapters {quoted(adapters, 'and')}"
        raise Refused.at("prompt_not_found", "task", detail=detail, prompts=has)
    kind = task.partition(".")[0]
    return kind if kind in adapters else None, prompt


def _adapters(served: Served) -> list[str]:
    model, *adapted = served.names
    return [name.removeprefix(f"{model}:") for name in adapted]


def check_alone(late_chunking: bool | None) -> None:
    """Refuse to read all inputs together."""
    if late_chunking:
        raise Refused.at("out_of_range", "late_chunking", detail=TOGETHER)
