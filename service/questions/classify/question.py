"""Zero-shot classification: how well a request's labels fit texts, by a model of entailment.

    pair          the text, and the template with the label in it
    one label     the softmax of the label's entailment and contradiction
    several       the softmax of the entailments of all labels

The softmax is in float64. Source: transformers 5.23, pipelines/zero_shot_classification.py.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from model.task_heads import Classifier
from service.engine.fair.turns import PIECE_ENTRIES, give_turn
from service.pipeline.cost import SINGLE
from service.pipeline.find.resolver import Resolver
from service.pipeline.worker import Workers
from service.pipeline.write.task_answers import short_numbers
from service.questions.classify import LABEL_HOLE, ZeroShotRequest
from service.questions.classify.reason import LabelReasons
from service.questions.decide.asked import FACT_BYTES
from service.questions.entailment import (
    check_length,
    check_pairs,
    find_classes,
    pair_side,
    softmax,
)
from service.questions.reasons import require_linear
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.price import Part, Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import Plan, Read, Step
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc, count_noun

REASONS_A_TURN = 32  # texts whose reasons are told between two pauses


class Classification:
    """A request to score labels for each text."""

    def __init__(
        self, ask: ZeroShotRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._layout, labels = ask, custom.layout, len(ask.labels)
        self._resolver = resolver
        _check_sizes(ask, resolver.most_sequences, resolver.most_json)

        def at(number: int, *field: str | int) -> Loc:
            """Return the place in the request of a pair's text, or of its label ("pair")."""
            text, label = divmod(number, labels)
            return ("labels", label) if field == ("pair",) else ("inputs", text)

        self._hypotheses = [
            ask.hypothesis_template.replace(LABEL_HOLE, label) for label in ask.labels
        ]
        pairs = [(text, hypothesis) for text in ask.inputs for hypothesis in self._hypotheses]
        side = pair_side(pairs, at, ask, resolver, each=labels, facts=bool(ask.reason))
        for head in side.outputs.task_heads:
            if ask.reason and isinstance(head, Classifier):
                require_linear(head, "reason")
        self.sides: Sequence[Side] = (side,)

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the only step, the pairs of all texts with all labels; an item is of a text."""
        labels, heads = self._ask.labels, works[0].outputs.task_heads
        of_texts = [works[i : i + len(labels)] for i in range(0, len(works), len(labels))]
        lengths = Counter(map(len, works))
        held = sum(n * head.count_bytes(tokens) for head in heads for tokens, n in lengths.items())
        size = len(of_texts) * sum(SINGLE + len(label.encode()) for label in labels)

        parts: dict[Part, int] = {"task": size}
        step, reasons = Step(works), None
        if self._ask.reason:
            asked = self._ask, self._ask.reason
            reasons = LabelReasons(*asked, of_texts, self._hypotheses, self._resolver)
            step, parts["shares"] = await reasons.step(), await reasons.weigh()
            held += FACT_BYTES * sum(map(len, works))

        async def make_items() -> Iterable[AnswerItem]:
            """Return an item for each text: its labels with their scores, best first."""
            if reasons is None:
                return (_rank_labels(self._ask, pairs, None) for pairs in of_texts)
            items = list[AnswerItem]()
            for index, pairs in enumerate(of_texts):
                items.append(_rank_labels(self._ask, pairs, reasons.tell(index)))
                if index % REASONS_A_TURN == REASONS_A_TURN - 1:
                    await give_turn(len(items) + PIECE_ENTRIES)
            return items

        return Plan(step, Price(parts, self._layout, held), make_items)


def _rank_labels(
    ask: ZeroShotRequest, works: Sequence[Work], reason: Mapping[str, Any] | None
) -> AnswerItem:
    """Return a text's item, its labels best first, from its works: one for each label."""
    logits = np.stack([work.result.task["logits"] for work in works])
    scores = short_numbers(_score_labels(logits, *find_classes(works[0]), ask.multi_label))
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    facts = {
        "classes": [{"label": ask.labels[place], "score": scores[place]} for place in order],
        "truncated": any(work.truncated for work in works),
        "length": max(work.length for work in works),
        **({} if reason is None else {"reason": reason}),
    }
    return AnswerItem(sum(map(len, works)), facts)


def _score_labels(logits: Array, contradiction: int, entailment: int, multi_label: bool) -> Array:
    """Return the scores of labels, (labels,) float32, from logits, (labels, classes).

    Args:
        contradiction, entailment: indices of the classes that mean them.
        multi_label: whether each label is scored by itself.
    """
    logits = logits.astype(np.float64)
    if multi_label or len(logits) == 1:
        return softmax(logits[:, [contradiction, entailment]])[:, 1].astype(np.float32)
    return softmax(logits[:, entailment]).astype(np.float32)


def _check_sizes(ask: ZeroShotRequest, most_pairs: int, most_json: int) -> None:
    """Refuse a request without texts, and one whose pairs exceed a limit.

    Args:
        most_pairs, most_json: of pairs, and of characters in all pairs together.
    """
    texts, labels = len(ask.inputs), len(ask.labels)
    if not texts:
        detail = "expected one text or more, received none"
        raise Refused.at("batch_empty", "inputs", detail=detail)
    check_pairs(texts, labels, ("input", "label"), most_pairs)
    # each text is tokenized with each label, and each label's hypothesis with each text
    length = sum(map(len, ask.inputs))
    check_length("inputs", length, most_json // labels, count_noun(labels, "label"))
    length, inputs = labels * len(ask.hypothesis_template), count_noun(texts, "input")
    length += sum(map(len, ask.labels))
    check_length("labels", length, most_json // texts, inputs, " in the template")
