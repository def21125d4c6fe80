"""Questions that a model of entailment answers: each option is a hypothesis about the state."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from model.probes.frozen_heads import check_linear
from model.similarity import NotLinear
from model.task_heads import TaskHead
from service.pipeline.find.resolver import Resolver
from service.questions.classify import DEFAULT_TEMPLATE, LABEL_HOLE
from service.questions.contrast import Contrast, Segment
from service.questions.decide import DecideRequest, DecisionQuestion
from service.questions.decide.asked import AskedQuestion
from service.questions.entailment import (
    check_length,
    check_pairs,
    contrast_hypotheses,
    find_classes,
    pair_side,
)
from service.shapes.answer import Array
from service.shapes.side import Side
from service.shapes.step import Read
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc, count_noun

ALONE_HINT = '"method": "alone" is answered, which leaves words out'
# Details of refusals
NO_HYPOTHESIS = 'expected "instructions", or "criteria" that say what "true" means'
NO_MARKS = "this model reads each option by itself, without a mark that attends to the others"


class Entailed:
    """Questions of one state, answered by how far it entails their hypotheses."""

    def __init__(self, ask: DecideRequest, resolver: Resolver) -> None:
        if ask.attention:
            raise Refused.at("out_of_range", "attention", detail=NO_MARKS)
        if ask.reason and ask.reason.method == "input":
            _check_linear(resolver.model.task_heads)
        self._ask = ask
        pairs = sum(1 if one.type == "noul" else len(one.options) for one in ask.questions)
        check_pairs(1, pairs, ("state", "option"), resolver.most_sequences)
        self._hypotheses = [list(write_hypotheses(question)) for question in ask.questions]
        every = [one for those in self._hypotheses for one in those]
        owned = zip(ask.questions, self._hypotheses, strict=True)
        owners = [question for question, those in owned for _ in those]
        # the state is tokenized with each hypothesis
        most = resolver.most_json // pairs
        check_length("state", len(ask.state), most, count_noun(pairs, "option"))

        def at(number: int, *field: str | int) -> Loc:
            """Return the place in the request of a pair's state, or of its question ("pair")."""
            return ("questions", owners[number].name) if field == ("pair",) else ("state",)

        side = pair_side(
            [(ask.state, hypothesis) for hypothesis in every],
            at,
            ask,
            resolver,
            each=pairs,
            facts=bool(ask.reason),
        )
        if ask.turns and side.cut == "right":  # of a talk the last turns count
            side = side._replace(cut="left")
        self.sides: Sequence[Side] = (side,)

    async def ask(self, works: Sequence[Work], read: Read) -> list[AskedQuestion]:
        """Return each question with the pairs of its hypotheses."""
        asked, first = list[AskedQuestion](), 0
        for question, those in zip(self._ask.questions, self._hypotheses, strict=True):
            own = works[first : first + len(those)]
            is_yes_or_no = question.type == "noul"
            logits = _read_contrast if is_yes_or_no else _read_entailments
            contrast = partial(self._contrast, question, own, those)
            asked.append(AskedQuestion(question, own, logits, contrast, cut=_describe_cut(own)))
            first += len(those)
        return asked

    def _contrast(
        self,
        question: DecisionQuestion,
        works: Sequence[Work],
        hypotheses: Sequence[str],
        first: int,
        second: int,
    ) -> list[Contrast]:
        """Return the pairs that make a margin, of entailments or of one and its contradiction."""
        state = Segment("state", None, self._ask.state)
        if question.type == "noul":
            said = Segment("instructions", None, *hypotheses)
            return contrast_hypotheses(state, [(works[0], said)])
        names = [option.name for option in question.options]
        return contrast_hypotheses(
            state,
            [
                (works[option], Segment("option", names[option], hypotheses[option]))
                for option in (first, second)
            ],
        )


def _check_linear(heads: Iterable[TaskHead]) -> None:
    """Refuse shares of a head that is no sum over its inputs."""
    try:
        for head in heads:
            check_linear(head)
    except NotLinear as error:
        detail = f"this model has {error}; {ALONE_HINT}"
        raise Refused.at("similarity_not_explainable", "reason", "method", detail=detail) from None


def write_hypotheses(question: DecisionQuestion) -> Iterator[str]:
    """Yield what is said of the state: for yes or no once, else for each option.

    Raises:
        Refused: it is a question of yes or no that says nothing.
    """
    instructions = (question.instructions or "").strip()
    if question.type == "noul":
        *_, yes = question.options
        said = " ".join(filter(None, (instructions, yes.description)))
        if not said:
            loc = ("questions", question.name, "instructions")
            raise Refused.at("out_of_range", *loc, detail=NO_HYPOTHESIS)
        yield said
        return
    template = instructions or DEFAULT_TEMPLATE
    for option in question.options:
        text = option.name
        if option.description:
            is_level = question.type == "score"
            text = option.description if is_level else f"{option.name}: {option.description}"
        holed = template.count(LABEL_HOLE) == 1
        yield template.replace(LABEL_HOLE, text) if holed else f"{template} {text}"


def _read_entailments(works: Sequence[Work]) -> Array:
    """Return the logit of entailment of each pair."""
    _, entailment = find_classes(works[0])
    logits = [work.result.task["logits"][entailment] for work in works]
    return np.array(logits, np.float64)


def _read_contrast(works: Sequence[Work]) -> Array:
    """Return the logits of contradiction and entailment of the only pair."""
    logits: Array = works[0].result.task["logits"][[*find_classes(works[0])]]
    return logits.astype(np.float64)


def _describe_cut(works: Sequence[Work]) -> dict[str, int] | None:
    """Return how many tokens were kept of the pair that was cut most; None: none was."""
    cut = max(works, key=lambda work: work.length - len(work))
    return {"tokens": cut.length, "tokens_kept": len(cut)} if cut.truncated else None
