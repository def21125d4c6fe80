"""TypeSafe's API of decisions, System One: POST /v1/systemone.

Deliberate differences: pictures are refused, in `assets`, as a question of the type "box", and in
multipart bodies; `model` may be left out. Laya's own `labels` and `option_order` of a question are
followed, and a list of labels as its criteria, as some clients send it. Sources of the request:
typesafe-sdk 0.7.5, its models and errors; laya 0.4.15, its agent and server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import from_json

from service.api.deciding import (
    ALL_OPTIONS,
    DECISION_CODES,
    Content,
    Criteria,
    DecidingRequest,
    DecisionsCall,
    check_count,
    check_distinct,
    count_tokens,
    make_option,
    make_question,
    make_request,
    own_facts,
    relocate,
    write_json,
)
from service.api.dialect import explain_refusal, json_reply
from service.api.own import FILE_MEDIA, FileCall, array_layout, negotiate_type
from service.observe.families import OF_TEXT
from service.pipeline.write.answer import write_file
from service.questions.decide import (
    MOST_OPTIONS,
    MOST_QUESTIONS,
    DecisionOption,
    DecisionQuestion,
    MarkerRows,
)
from service.shapes.answer import JSON, Answer, AnswerItem
from service.shapes.ask import Custom
from service.shapes.call import Api, Example, ModelFacts, Reply, RequestHead
from service.tables import refusals
from service.tables.refusals import Refused, refusal_of
from service.tables.wording.wire import ForeignRequest, Wire
from service.tables.wording.words import PLAIN_NAME, Loc, describe_value

ID_HEADER = "x-typesafe-request-id"  # of a refusal: its clients show it
FAULTY_STATUS = refusals.REFUSALS["invalid_type"].status  # of answers that list faults
Names = Mapping[str, str | int]  # what places call questions, by their names
NO_NAMES: Names = {}  # of a body that is not read yet
FIELDS: Mapping[Any, str] = {"options": "criteria", "order": "option_order"}  # by native ones
# Details of refusals
BOX = 'a "box" is a place in a picture, and texts are all that is read'
OF_NOUL = 'only a question of the type "noul" has it'
TWO_LABELS = "expected two texts that differ and are not blank"
NO_LEVEL = "expected a text, an object or a list, received {received}"
LABEL_TYPE = "expected a label, received {received}"
LABEL_TWICE = "it repeats an earlier one"


class NoulCriteria(Wire):
    """What counts as yes, and what as no."""

    true: Content | None = None
    """What counts as yes; left out, null or empty: that the statement holds."""
    false: Content | None = None
    """What counts as no; left out, null or empty: that it does not hold."""


class NoulLabels(Wire):
    """What the model reads in place of "false" and "true"."""

    false: str
    """For no."""
    true: str
    """For yes, another text."""


class SystemOneQuestion(ForeignRequest):
    """A question of POST /v1/systemone."""

    type: Literal["noul", "choice", "score", "box"]
    """What is asked: whether something holds ("noul"), one of several options ("choice"), or a
    level ("score"). A "box" is of a picture, and refused."""
    instructions: Content | None = None
    """What to decide, in words or as JSON. Laya's models need it."""
    criteria: Criteria | None = None
    """Of a choice: its options, 2 to 255, by name, each with a description (a text or JSON; null or
    empty: the name says it all), or a list of names. Of a score: its levels, 1 to 255, from 0 up.
    Of a noul: what counts as "true" and as "false", either or both."""
    labels: NoulLabels | None = None
    """Laya's, of a noul: what its model reads in place of "false" and "true"."""
    option_order: list[int] | None = None
    """Laya's: in which order its model reads the options, by their numbers from 0."""


class SystemOneRequest(DecidingRequest):
    """The body of POST /v1/systemone."""

    state: Content
    """What all questions are about: a text or JSON. Of a list, a cut keeps the end."""
    questions: dict[str, SystemOneQuestion]
    """The questions, 1 to 400, each by a name that its answer has, too."""
    attention: MarkerRows | None = None
    """Ours: which attention of the options' mask tokens to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemOneCall(DecisionsCall, FileCall):
    """A request of POST /v1/systemone.

    Args:
        legends: the levels of each question that is a score, as they were sent; None of others.
    """

    legends: Sequence[Sequence[Any] | None]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return TypeSafe's answer: each question's by its name."""
        answers = {
            question.name: _write_answer(item, legend, as_file=self.media_type != JSON)
            for question, legend, item in zip(
                self.questions, self.legends, encoded.items, strict=True
            )
        }
        usage = {"input_tokens": count_tokens(encoded), "output_tokens": 0}
        return {"model": encoded.preamble["model"], "answers": answers, "usage": usage}

    def write_file(self, encoded: Answer) -> Iterator[bytes]:
        """Return the answer as a safetensors file, whose arrays stand by the questions' numbers."""
        arrays = {
            f"{number}.{name}": array
            for number, item in enumerate(encoded.items)
            for name, array in item.arrays.items()
        }
        return write_file(self.to_json(encoded), arrays)


def _write_answer(
    item: AnswerItem, legend: Sequence[Any] | None, *, as_file: bool
) -> dict[str, Any]:
    """Return the answer to one question, as its type has it; without arrays for a file."""
    facts = item.facts
    kind, probabilities = facts["type"], facts["probabilities"]
    told: dict[str, Any] = {"type": kind}
    match kind:
        case "noul":
            told["noul"] = probabilities[1]  # the options are false and true
        case "choice":
            told["choice"] = facts["options"][facts["winner"]]
            told["confidence"] = facts["confidence"]
            told["probabilities"] = dict(zip(facts["options"], probabilities, strict=True))
        case _:
            told["score"], told["confidence"] = facts["score"], facts["confidence"]
            numbers = [*map(str, range(len(probabilities)))]
            told["legend"] = dict(zip(numbers, legend or (), strict=True))
            told["probabilities"] = dict(zip(numbers, probabilities, strict=True))
    return told | dict(own_facts(item, as_file=as_file))


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> SystemOneCall:
    """Parse a request of POST /v1/systemone; raises Refused or ValidationError."""
    media_type = negotiate_type(head.headers.get("accept", "*/*"))
    try:
        request = SystemOneRequest.parse(body, head.ignored)
    except ValidationError as error:
        raise _name_questions(error, body) from None
    check_count(len(request.questions), 1, MOST_QUESTIONS, "question", "questions")
    names = {name: _place(number, name) for number, name in enumerate(request.questions)}
    head.word = partial(problem, names=names)
    questions = [_read_question(name, asked) for name, asked in request.questions.items()]
    layout = array_layout("json", media_type)._replace(extra_bytes=len(body))
    return SystemOneCall(
        request=make_request(request, request.state, questions, attention=request.attention),
        custom=Custom(layout),
        media_type=media_type,
        legends=[
            question.criteria if isinstance(question.criteria, list) else None
            for question in request.questions.values()
        ],
    )


def _read_question(name: str, asked: SystemOneQuestion) -> DecisionQuestion:
    """Return a question in the native form.

    Raises:
        Refused: it has too few or too many options, two are alike, or a field is of another type.
    """
    at = partial(Refused.at, "out_of_range", "questions", name)
    if asked.type == "box":
        raise at("type", detail=BOX)
    if asked.type != "noul" and asked.labels is not None:
        raise at("labels", detail=OF_NOUL)
    options = _read_options(name, asked)
    order = asked.option_order
    if order is not None and sorted(order) != [*range(len(options))]:
        detail = f"expected each number from 0 to {len(options) - 1} once"
        raise at("option_order", detail=detail)
    labels = None
    if asked.labels is not None:
        labels = asked.labels.false.strip(), asked.labels.true.strip()
        if not all(labels) or labels[0] == labels[1]:
            raise at("labels", detail=TWO_LABELS)
    instructions = asked.instructions
    question: DecisionQuestion = make_question(
        name,
        asked.type,
        options,
        instructions=write_json(instructions) if instructions else None,
        labels=labels,
        order=order,
    )
    return question


def _read_options(name: str, asked: SystemOneQuestion) -> list[DecisionOption]:
    """Return the options of a question, as the model is to read them."""
    place, criteria = ("questions", name, "criteria"), asked.criteria
    match asked.type, criteria:
        case "noul", None | dict():
            try:
                told = NoulCriteria.model_validate(criteria or {})
            except ValidationError as error:
                raise _within(refusal_of(error), place) from None
            return [
                make_option(key, _describe(text))
                for key, text in (("false", told.false), ("true", told.true))
            ]
        case "choice", dict():
            check_count(len(criteria), 2, MOST_OPTIONS, "option", *place)
            options = [make_option(key, _describe(value)) for key, value in criteria.items()]
        case "choice", list():
            check_count(len(criteria), 2, MOST_OPTIONS, "option", *place)
            _check_labels(criteria, place)
            options = [make_option(label) for label in criteria]
        case "score", list():
            check_count(len(criteria), 1, MOST_OPTIONS, "level", *place)
            for level, text in enumerate(criteria):
                if not isinstance(text, str | dict | list):
                    detail = NO_LEVEL.format(received=describe_value(text))
                    raise Refused.at("invalid_type", *place, level, detail=detail)
            return [make_option(str(level), write_json(t)) for level, t in enumerate(criteria)]
        case _:
            code = "missing_field" if criteria is None else "invalid_type"
            shapes = {"score": "a list of levels", "choice": "an object of options by name"}
            expected = shapes.get(asked.type, 'an object with "true" and "false"')
            detail = f"a question of the type {asked.type} takes {expected}"
            raise Refused.at(code, *place, detail=detail)
    check_distinct(options, *place)
    return options


def _check_labels(labels: Sequence[Any], place: Loc) -> None:
    """Refuse labels that are no texts, or occur twice: answers stand by them."""
    seen = set[str]()
    for number, label in enumerate(labels):
        if not isinstance(label, str):
            detail = LABEL_TYPE.format(received=describe_value(label))
            raise Refused.at("invalid_type", *place, number, detail=detail)
        if label in seen:
            raise Refused.at("out_of_range", *place, number, detail=LABEL_TWICE)
        seen.add(label)


def _describe(value: Any) -> str | None:
    """Return a criterion as text; None for one that says nothing."""
    return None if value is None or value == "" else write_json(value)


def _name_questions(error: ValidationError, body: bytes) -> Refused:
    """Return the refusal of a body, in whose places questions stand by name or number."""
    refused = refusal_of(error)
    try:
        numbers = {name: number for number, name in enumerate(from_json(body)["questions"])}
    except (ValueError, LookupError, TypeError):  # it has none
        return refused
    faults = error.errors(include_url=False, include_input=False)
    found = iter([fault["loc"] for fault in faults])

    def place(loc: Loc) -> Loc:
        """Return a fault's place with the question in it, if it is of one."""
        match next(found):
            case ("questions", str(name), *_) if name in numbers:
                return (*loc[:1], _place(numbers[name], name), *loc[1:])
        return loc

    return relocate(refused, place)


def _place(number: int, name: str) -> str | int:
    """Return what a refusal calls a question: its name where that is plain, else its number."""
    return name if PLAIN_NAME.fullmatch(name) else number


def _within(refused: Refused, place: Loc) -> Refused:
    """Return a refusal of a part of a request with its places in the whole."""
    return relocate(refused, lambda loc: (*place, *loc))


def problem(refused: Refused, request_id: str, names: Names = NO_NAMES) -> Reply:
    """Return the response of a refusal in the form of TypeSafe's errors.

    Where no faults are listed, the code stands next to the sentence, for clients of ours.

    Args:
        names: what places call the questions, by their names.
    """
    told: dict[str, Any] = {"detail": explain_refusal(refused, {}), "code": refused.code}
    if refused.status == FAULTY_STATUS:
        told = {"detail": _list_faults(refused, names)}
    reply = json_reply(told, refused.status)
    reply.add(ID_HEADER, request_id)
    return reply


def _list_faults(refused: Refused, names: Names) -> list[dict[str, Any]]:
    """Return what is wrong with a request, and where, as FastAPI has it."""

    def place(loc: Loc) -> Loc:
        """Return a place as TypeSafe's API names it."""
        match loc:
            case ("questions", str(name), *rest) if name in names:
                field = [FIELDS.get(part, part) for part in rest[:1]]
                return ("questions", names[name], *field, *rest[1:])
        return loc

    faults = relocate(refused, place).faults
    entries: list[dict[str, Any]] = [
        {
            "loc": ["body", *fault.loc],
            "msg": refusals.word_refusal(refused, [fault], lambda loc: ""),
            "type": fault.code,
        }
        for fault in faults
    ]
    whole = {"loc": ["body"], "msg": refusals.word_refusal(refused, ()), "type": refused.code}
    facts = {"ctx": refused.facts} if refused.facts else {}
    return [entry | facts for entry in entries or [whole]]


API = Api(
    "TypeSafe",
    problem,
    body_codes=(*DECISION_CODES, "not_acceptable"),
    document="https://docs.typesafe.ai/go/system-one",
)
ROUTES = [
    API.post(
        "/v1/systemone",
        "TypeSafe: decisions on a state, each with its probabilities",
        SystemOneRequest,
        parse,
        inputs=OF_TEXT,
        task="decide",
        answer_media=FILE_MEDIA,
        values=ALL_OPTIONS,
        more="Answers by a Laya checkpoint, or by a model of natural language inference, whose "
        "probabilities nobody has calibrated.",
        examples=[
            Example(
                "three questions",
                "Yes or no, one of several, a level; refused here, since this checkpoint has no "
                "head for it",
                '{"model": "all-MiniLM-L6-v2", "state": "I was charged twice. Please help.", '
                '"questions": {"billing": {"type": "noul", "instructions": "Is it about a bill?"}, '
                '"tone": {"type": "choice", "instructions": "What is its tone?", '
                '"criteria": {"calm": null, "angry": "upset or hostile"}}, '
                '"urgency": {"type": "score", "instructions": "How urgent is it?", '
                '"criteria": ["can wait", "needs a look today"]}}}',
            )
        ],
    )
]
