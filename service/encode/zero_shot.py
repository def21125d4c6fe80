"""How well labels of a request's own fit texts, by a model that tells what a text entails.

    pair          the text, and the template with the label in it
    one label     the softmax of the label's entailment and contradiction
    several       the softmax of the entailments of all labels

The contradiction is the first class, or the last where the first is the entailment. All is
float64. Source: transformers 5.23, pipelines/zero_shot_classification.py.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from model.task_heads import Classifier
from service.encode.answer import Array, Item
from service.encode.interventions import Outcome
from service.encode.plan import Plan
from service.encode.price import SINGLE, Price
from service.encode.request import Request, ZeroShot
from service.encode.shown import numbers
from service.engine.work import Result, Work


class ZeroShots:
    """Ends requests with the scores of each text's labels."""

    def check(self, request: Request) -> None:
        """Let every request pass."""

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh: a score and a name for each pair."""
        labels = _asked(request).labels
        each = sum(SINGLE + len(label.encode()) for label in labels)
        held = sum(head.bytes(len(one)) for one in plan.works for head in one.outputs.task_heads)
        return Price({"task": each * len(plan.works) // len(labels)}, request.layout, held)

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered for each text, in the order of the request."""
        asked, works, results = _asked(request), plan.works, outcome.inputs
        many = len(asked.labels)
        return (
            _item(asked, works[first : first + many], results[first : first + many])
            for first in range(0, len(works), many)
        )


def _asked(request: Request) -> ZeroShot:
    if not isinstance(request.ending, ZeroShot):
        raise RuntimeError("another ending's request: this is a bug")
    return request.ending


def _item(asked: ZeroShot, works: Sequence[Work], results: Sequence[Result]) -> Item:
    """Return a text's labels by their scores; of equal ones the first stays first."""
    logits = np.stack([result.task["logits"] for result in results])
    scores = numbers(_scores(logits, _entailment(works[0]), asked.multi_label))
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    facts = {
        "classes": [{"label": asked.labels[place], "score": scores[place]} for place in order],
        "truncated": any(work.truncated for work in works),
        "length": max(work.length for work in works),
    }
    return Item(sum(map(len, works)), facts)


def _entailment(work: Work) -> int:
    """Return the class that says so."""
    for head in work.outputs.task_heads:
        if isinstance(head, Classifier) and head.entailment is not None:
            return head.entailment
    raise RuntimeError("a model without the task: this is a bug")


def _scores(logits: Array, entailment: int, multi_label: bool) -> Array:
    """Return the scores of labels, (labels,) float32, by their logits, (labels, classes)."""
    logits = logits.astype(np.float64)
    if multi_label or len(logits) == 1:
        contradiction = 0 if entailment else -1
        return _softmax(logits[:, [contradiction, entailment]])[:, 1].astype(np.float32)
    return _softmax(logits[:, entailment]).astype(np.float32)


def _softmax(logits: Array) -> Array:
    """Return shares that sum to 1 along the last axis."""
    powers: Array = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares
