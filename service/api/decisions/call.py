"""POST /v1/decisions: its request, and how its answer is written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import SkipValidation

from service.api.deciding import (
    ALL_OPTIONS,
    DECISION_CODES,
    DecidingRequest,
    DecisionsCall,
    Parts,
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
from service.api.decisions.messages import not_taken, read_field, read_messages, read_text
from service.api.openai_errors import openai_problem
from service.observe.families import OF_TEXT
from service.questions.decide import (
    MOST_OPTIONS,
    MOST_QUESTIONS,
    DecisionOption,
    DecisionQuestion,
)
from service.shapes.answer import Answer, AnswerItem, Each
from service.shapes.ask import Custom
from service.shapes.call import Api, Example, ModelFacts, Reply, RequestHead
from service.shapes.price import Layout
from service.tables.refusals import OPENAI_STATUSES, Refused
from service.tables.wording.wire import ForeignRequest
from service.tables.wording.words import Loc

KINDS: Mapping[str, Literal["noul", "choice", "score"]] = {
    "predicate": "noul",
    "choice": "choice",
    "score": "score",
}
NO_OPTIONS = (make_option("false"), make_option("true"))  # of a predicate


class DecisionsChoice(ForeignRequest):
    """An option of a choice."""

    value: str | bool
    """What the answer calls it; a text and a boolean differ."""
    description: str | None = None
    """When it applies; left out, null or empty: the value says it all."""


class DecisionsLevel(ForeignRequest):
    """A level of a score."""

    label: str
    """What the answer calls it."""
    description: str | None = None
    """When it applies; left out, null or empty: the label says it all."""


class DecisionsQuestion(ForeignRequest):
    """A question of POST /v1/decisions."""

    type: Literal["predicate", "choice", "score"]
    """What is asked: whether something holds, one of several options, or a level."""
    instructions: Parts
    """What to decide: a text, or parts of the types input_text and input_json."""
    name: str | None = None
    """What the answer calls the question."""
    choices: list[SkipValidation[DecisionsChoice]] | None = None
    """Of a choice: its options, 2 to 255, no two alike."""
    levels: list[SkipValidation[DecisionsLevel]] | None = None
    """Of a score: its levels, 1 to 255, from 0 up."""


class DecisionsRequest(DecidingRequest):
    """The body of POST /v1/decisions."""

    input: Parts
    """What all questions are about: a text, or messages and calls of tools with their outputs."""
    questions: list[DecisionsQuestion]
    """The questions, 1 to 400, answered in this order."""
    prompt_cache_key: Any = None
    """Any is taken; nothing is kept from one request to the next."""
    prompt_cache_options: Any = None
    """Any is taken, as of `prompt_cache_key`."""
    safety_identifier: Any = None
    """Any is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIDecisionsCall(DecisionsCall):
    """A request of POST /v1/decisions.

    Args:
        names: of the questions, None where one has no name.
        values: what the answer calls the options of each question.
    """

    names: Sequence[str | None]
    values: Sequence[Sequence[str | bool]]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return OpenAI's answer: those of the questions in their order."""
        tokens = count_tokens(encoded)
        answers = map(_write_answer, encoded.items, self.names, self.values)
        return {
            "model": encoded.preamble["model"],
            "answers": Each(answers),
            "usage": {
                "input_tokens": tokens,
                "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens,
            },
        }


def _write_answer(
    item: AnswerItem, name: str | None, values: Sequence[str | bool]
) -> dict[str, Any]:
    """Return the answer to one question, as its type has it."""
    facts = item.facts
    probabilities = facts["probabilities"]
    told: dict[str, Any] = {"name": name}
    match facts["type"]:
        case "noul":
            told |= {"type": "predicate", "probability": probabilities[1]}
        case "choice":
            told |= {
                "type": "choice",
                "choice": values[facts["winner"]],
                "confidence": facts["confidence"],
                "probabilities": [
                    {"value": value, "probability": probability}
                    for value, probability in zip(values, probabilities, strict=True)
                ],
            }
        case _:
            told |= {
                "type": "score",
                "score": facts["score"],
                "confidence": facts["confidence"],
                "probabilities": [
                    {"label": label, "value": level, "probability": probability}
                    for level, (label, probability) in enumerate(
                        zip(values, probabilities, strict=True)
                    )
                ],
            }
    return told | dict(own_facts(item))


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> OpenAIDecisionsCall:
    """Parse a request of POST /v1/decisions; raises Refused or ValidationError."""
    request = DecisionsRequest.parse(body, head.ignored)
    check_count(len(request.questions), 1, MOST_QUESTIONS, "question", "questions")
    fields = ["levels" if each.type == "score" else "choices" for each in request.questions]
    head.word = partial(problem, fields=fields)
    state = request.input
    if isinstance(state, list):
        state = read_messages(state)
    read = [
        _read_question(asked, number, head.ignored)
        for number, asked in enumerate(request.questions)
    ]
    return OpenAIDecisionsCall(
        request=make_request(request, state, [question for question, _ in read]),
        custom=Custom(Layout(extra_bytes=len(body))),
        names=[asked.name for asked in request.questions],
        values=[values for _, values in read],
    )


def _read_question(
    asked: DecisionsQuestion, number: int, ignored: dict[str, None]
) -> tuple[DecisionQuestion, Sequence[str | bool]]:
    """Return a question in the native form, and what the answer calls its options.

    Args:
        ignored: gets the fields of options that are not known.

    Raises:
        Refused: it has too few or too many options, or two are alike.
    """
    said = {"choices": asked.choices, "levels": asked.levels}
    field, least = {"choice": ("choices", 2), "score": ("levels", 1)}.get(asked.type, ("", 0))
    for other, entries in said.items():
        if other != field and entries is not None:
            detail = f"a question of the type {asked.type} has none"
            raise Refused.at("out_of_range", "questions", number, other, detail=detail)
    options, values = list(NO_OPTIONS), list[str | bool]()
    if field:
        place = ("questions", number, field)
        entries = read_field({field: said[field]}, field, (list,), place[:-1])
        check_count(len(entries), least, MOST_OPTIONS, field.removesuffix("s"), *place)
        reads = _read_choice if field == "choices" else _read_level
        read = [reads(entry, (*place, i), ignored) for i, entry in enumerate(entries)]
        options, values = [option for option, _ in read], [value for _, value in read]
        if field == "choices":
            check_distinct(options, *place)
    instructions = read_text(asked.instructions, "questions", number, "instructions")
    kind = KINDS[asked.type]
    return make_question(str(number), kind, options, instructions=instructions), values


def _read_choice(
    entry: Any, place: Loc, ignored: dict[str, None]
) -> tuple[DecisionOption, str | bool]:
    """Return an option of a choice, and its value: a boolean is read as JSON writes it."""
    description = _read_entry(entry, ("value", "description"), place, ignored)
    value = read_field(entry, "value", (str, bool), place)
    return make_option(write_json(value), description), value


def _read_level(
    entry: Any, place: Loc, ignored: dict[str, None]
) -> tuple[DecisionOption, str | bool]:
    """Return a level of a score, and its label, which the model reads before the description."""
    description = _read_entry(entry, ("label", "description"), place, ignored)
    label = read_field(entry, "label", (str,), place)
    return make_option(label, description and f"{label}: {description}"), label


def _read_entry(
    entry: Any, fields: Sequence[str], place: Loc, ignored: dict[str, None]
) -> str | None:
    """Return the description of an option, if it has one; note its unknown fields as ignored."""
    if not isinstance(entry, dict):
        raise not_taken("an object", entry, *place)
    ignored |= dict.fromkeys(
        name for name, said in entry.items() if name not in fields and said is not None
    )
    if not entry.get("description"):
        return None
    description: str = read_field(entry, "description", (str,), place)
    return description


def problem(refused: Refused, request_id: str, fields: Sequence[str] = ()) -> Reply:
    """Return the response of a refusal in the form of OpenAI's errors.

    Args:
        fields: what the options of each question are called.
    """

    def place(loc: Loc) -> Loc:
        """Return a place as OpenAI's API names it."""
        match loc:
            case ("state", *rest):
                return ("input", *rest)
            case ("questions", str(number), field, *rest) if number.isdecimal():
                named = fields[int(number)] if field == "options" else field
                return ("questions", int(number), named, *rest)
        return loc

    return openai_problem(relocate(refused, place), {})


API = Api(
    "OpenAI decisions",
    problem,
    OPENAI_STATUSES,
    body_codes=DECISION_CODES,
    document="https://platform.openai.com/docs/api-reference/decisions",
)
ROUTES = [
    API.post(
        "/v1/decisions",
        "OpenAI: decisions on a text or messages, each with its probabilities",
        DecisionsRequest,
        parse,
        inputs=OF_TEXT,
        task="decide",
        values=ALL_OPTIONS,
        more="As POST /v1/systemone, in the form of OpenAI's clients.",
        examples=[
            Example(
                "three questions",
                "Yes or no, one of several, a level; refused here, since this checkpoint has no "
                "head for it",
                '{"model": "all-MiniLM-L6-v2", "input": [{"role": "user", '
                '"content": "I was charged twice. Please help."}], "questions": ['
                '{"type": "predicate", "name": "billing", "instructions": "Is it about a bill?"}, '
                '{"type": "choice", "instructions": "What is its tone?", "choices": ['
                '{"value": "calm"}, {"value": "angry", "description": "upset or hostile"}]}, '
                '{"type": "score", "instructions": "How urgent is it?", "levels": ['
                '{"label": "can wait"}, {"label": "needs a look today"}]}]}',
            )
        ],
    )
]
