"""What a model of entailment makes of a text and hypotheses: classes of your own, and decisions.

Each hypothesis is read with the text as a pair, whose classes tell whether the text entails it. The
contradiction is the first class, or the last where the first is the entailment. Source:
transformers 5.23, pipelines/zero_shot_classification.py.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from model.task_heads import Classifier
from service.pipeline.find.resolver import Resolver
from service.questions.contrast import Contrast, Segment
from service.shapes.answer import Array
from service.shapes.ask import Ask, Documents
from service.shapes.outputs import Entailment
from service.shapes.side import Placer, Side
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import count_noun


def pair_side(
    pairs: Sequence[tuple[str, str]],
    at: Placer,
    ask: Ask,
    resolver: Resolver,
    *,
    each: int,
    facts: bool = False,
) -> Side:
    """Return the side of texts and their hypotheses, of which the text alone may be cut.

    Args:
        at, each, facts: as `Side` has them.

    Raises:
        Refused: the model does not tell entailment, or it is another model.
    """
    adapter, tasks = resolver.adapter(ask.model), resolver.tasks((Entailment(),))
    outputs = replace(resolver.outputs(False), task_heads=tuple([task.head for task in tasks]))
    return Side(
        pairs,
        outputs,
        at,
        cut=resolver.cut(ask.truncate),
        facts=facts,
        adapter=adapter,
        documents=Documents(whole=True),
        tasks=tasks,
        each=each,
    )


def find_classes(work: Work) -> tuple[int, int]:
    """Return the classes of a pair that mean contradiction and entailment."""
    entailment = find_head(work).entailment or 0
    return 0 if entailment else len(find_head(work).labels) - 1, entailment


def contrast_hypotheses(text: Segment, read: Sequence[tuple[Work, Segment]]) -> list[Contrast]:
    """Return the pairs whose logits make the margin of one hypothesis over another.

    Args:
        text: which all are about.
        read: the pairs, each with its hypothesis: two, or one, which stands against its
            contradiction.
    """
    contradiction, entailment = find_classes(read[0][0])
    units = np.eye(len(find_head(read[0][0]).labels))
    against = units[contradiction] if len(read) == 1 else 0.0
    weights = (units[entailment] - against, -units[entailment])
    return [
        Contrast(work, weight.tolist(), [text, said])
        for (work, said), weight in zip(read, weights, strict=False)
    ]


def find_head(work: Work) -> Classifier:
    """Return the head that tells entailment."""
    heads = (head for head in work.outputs.task_heads if isinstance(head, Classifier))
    return next(head for head in heads if head.entailment is not None)


def softmax(logits: Array) -> Array:
    """Return the softmax of logits along the last axis, float64."""
    powers: Array = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares


def check_pairs(texts: int, hypotheses: int, whats: tuple[str, str], limit: int) -> None:
    """Refuse more pairs of each text with each hypothesis than a request may have.

    Args:
        whats: what the request calls a text, and a hypothesis.
    """
    if texts * hypotheses > limit:
        first, second = count_noun(texts, whats[0]), count_noun(hypotheses, whats[1])
        detail = f"{first} with {second} each are {texts * hypotheses:,} pairs, "
        raise Refused("batch_too_large", detail=f"{detail}and the limit is {limit:,}", limit=limit)


def check_length(field: str, length: int, limit: int, others: str, of: str = "") -> None:
    """Refuse a field of more than `limit` characters.

    Args:
        others: what the limit follows from, as each text is tokenized with each hypothesis.
        of: which characters they are.
    """
    if length > limit:
        detail = f"expected at most {limit:,} characters{of} with {others}, received {length:,}"
        raise Refused.at("text_too_long", field, detail=detail, length=length, limit=limit)
