"""What the APIs of decisions share: the native request, its own fields, and the refused place."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypeAliasType

from model.decisions import Kind
from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall
from service.questions.decide import (
    MOST_OPTIONS,
    MOST_ORDERS,
    MOST_QUESTIONS,
    DecideRequest,
    DecisionOption,
    DecisionQuestion,
    Reason,
)
from service.shapes.answer import Answer, AnswerItem
from service.shapes.call import ENCODE_CODES
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest
from service.tables.wording.words import Loc, count_noun

DECISION_CODES = (*ENCODE_CODES, "task_not_found", "model_not_found")  # of routes that decide
# Objects that a request may hold beside what any may: in one of the APIs each option is one
ALL_OPTIONS = MOST_QUESTIONS * (MOST_OPTIONS + 1)
OWN_FACTS = ("reason", "reason_missing", "orders", "truncated")  # of an answer, where it has one

TAGS: Mapping[type, str] = {dict: "<object>", list: "<list>"}  # of the members of the unions below
by_shape = Discriminator(lambda value: TAGS.get(type(value), "<text>"))
Text = Annotated[str, Tag("<text>")]
Object = Annotated[dict[str, Any], Tag("<object>")]
List = Annotated[list[Any], Tag("<list>")]
Content = TypeAliasType("Content", Annotated[Text | Object | List, by_shape])
Parts = TypeAliasType("Parts", Annotated[Text | List, by_shape])
Criteria = TypeAliasType("Criteria", Annotated[Object | List, by_shape])
Place = Callable[[Loc], Loc]  # where in an API's request a native place stands


class DecidingRequest(ForeignRequest):
    """What every request for decisions may say, and servers of no other kind read."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    truncate: Truncate | None = None
    """Ours: what happens to a question or a state that does not fit: it is refused, or cut as the
    model's own library does, which the answer says."""
    reason: Reason | None = None
    """Ours: whether, and how, each answer tells what it rests on."""
    orders: Annotated[int, Field(ge=0, le=MOST_ORDERS)] = 0
    """Ours: in how many other orders of its options each question is asked again, to tell how far
    its answer moves."""


class DecisionsCall(JSONCall):
    """A parsed request for decisions."""

    needs_all: ClassVar = True  # the answers are counted, and stand by their names

    @property
    def questions(self) -> Sequence[DecisionQuestion]:
        """Return what was asked, in order."""
        questions: Sequence[DecisionQuestion] = self.request.chosen("questions", ())
        return questions


def write_json(value: Any) -> str:
    """Return a value as a model reads it: a text as it is, else one line of JSON.

    Letters beyond ASCII stay as they are. Source: laya 0.4.15, laya/common.py (`serialize_state`,
    `render_criterion`).
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def make_request(
    asked: DecidingRequest, state: Any, questions: Sequence[DecisionQuestion], **more: Any
) -> DecideRequest:
    """Return the native request for decisions of a state, a text or JSON.

    Args:
        more: fields that an API alone has.
    """
    return BLANK.altered(
        model=asked.model,
        state=write_json(state),
        turns=isinstance(state, list),
        questions=questions,
        truncate=asked.truncate,
        reason=asked.reason,
        orders=asked.orders,
        **more,
    )


def make_question(name: str, kind: Kind, options: Sequence[DecisionOption], **more: Any) -> Any:
    """Return a native question of checked parts; `more` are its other fields."""
    return ASKED.altered(name=name, type=kind, options=options, **more)


def make_option(name: str, description: str | None = None) -> DecisionOption:
    """Return a native option of checked parts."""
    return NAMED.altered(name=name, description=description)


BLANK = DecideRequest.model_construct(state="", questions=[])  # copied, with all defaults
ASKED = DecisionQuestion.model_construct(name="", type="noul", options=[])
NAMED = DecisionOption.model_construct(name="")


def check_count(count: int, least: int, most: int, noun: str, *place: str | int) -> None:
    """Refuse a list of too few or too many; `noun` says of what, in one."""
    if count < least:
        code = "out_of_range" if count else "batch_empty"
        detail = f"expected {count_noun(least, noun)} or more, received {count or 'none'}"
        raise Refused.at(code, *place, detail=detail)
    if count > most:
        detail = f"expected {count_noun(most, noun)} at most, received {count:,}"
        raise Refused.at("batch_too_large", *place, detail=detail, limit=most)


def check_distinct(options: Sequence[DecisionOption], *place: str | int) -> None:
    """Refuse two options that the model would read as the same text.

    Args:
        place: of the options.
    """
    seen = dict[str, int]()
    for number, option in enumerate(options):
        text = f"{option.name}: {option.description}" if option.description else option.name
        if (first := seen.setdefault(text, number)) != number:
            detail = f"the model would read it as it reads option {first}: each has its own words"
            raise Refused.at("out_of_range", *place, number, detail=detail)


def relocate(refused: Refused, place: Place) -> Refused:
    """Return a refusal of the native request with its places in an API's."""
    relocated = copy.copy(refused)
    relocated.faults = [replace(fault, loc=place(fault.loc)) for fault in refused.faults]
    return relocated


def own_facts(item: AnswerItem, *, as_file: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a question's answer that no other server has, those that it asked for.

    Args:
        as_file: whether the arrays of its attention stand elsewhere.
    """
    for name in OWN_FACTS:
        if name in item.facts and (name != "truncated" or item.facts[name]):
            yield name, item.facts[name]
    if item.attention is not None:
        yield "attention", {**item.attention, **({} if as_file else item.maps)}


def count_tokens(encoded: Answer) -> int:
    """Return how many tokens the model ran for an answer whose items are made."""
    return sum(item.tokens_run for item in encoded.items)
