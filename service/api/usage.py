"""The `usage` of answers, as the APIs of OpenAI, Mistral, Together, Voyage and NIM have it."""

from service.shapes.answer import Answer


def count_usage(encoded: Answer) -> dict[str, int]:
    """Return counts of an answer's tokens, and of inputs cut where it is counted."""
    tokens, truncated = encoded.usage["tokens"], encoded.usage.get("truncated")
    counts = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    return counts if truncated is None else counts | {"truncated": truncated}
