"""POST /v1/classify: texts by labels of the request's own."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service.api.dialect import JSONCall, Sent, Served
from service.api.inputs import Strings
from service.api.native.heads import Gates
from service.api.own import question
from service.encode import request as encode
from service.encode.answer import Each, Encoded
from service.observe.families import OF_TEXT
from service.refusals import Refused
from service.wire import Wire

HOLE = "{}"
NO_LABEL: LiteralString = "expected one label or more, received none"
EMPTY_LABEL: LiteralString = "label {place} is empty"
TWICE: LiteralString = "label {place} is there before"
NO_HOLE: LiteralString = (
    'expected one "{}", where each label goes, and no other brace; received {count} braces'
)


def _distinct(labels: list[str]) -> list[str]:
    if not labels:
        raise PydanticCustomError("labels_distinct", NO_LABEL)
    seen: set[str] = set()
    for place, label in enumerate(labels):
        if not label or label in seen:
            said = TWICE if label else EMPTY_LABEL
            raise PydanticCustomError("labels_distinct", said, {"place": place})
        seen.add(label)
    return labels


def _open(template: str) -> str:
    braces = template.count("{") + template.count("}")
    if HOLE not in template or braces != len(HOLE):
        raise PydanticCustomError("template_hole", NO_HOLE, {"count": braces})
    return template


Labels = TypeAliasType("Labels", Annotated[Strings, AfterValidator(_distinct)])


class ZeroShotRequest(Wire):
    """The body of POST /v1/classify."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    inputs: Strings
    """The texts to classify: 1 or more, with each label at most `max_sequences` pairs."""
    labels: Labels
    """What a text may be: 1 or more, each once."""
    hypothesis_template: Annotated[str, AfterValidator(_open)] = "This example is {}."
    """What is said of a text, with "{}" where the label goes."""
    multi_label: bool = False
    """Whether several labels may fit a text, each scored by itself; false: the scores of its labels
    sum to 1."""
    truncate: Truncate | None = None
    """What happens to a text that has more than `max_tokens` tokens with its label and the
    template: it is refused, or cut on this side. The label and the template are never cut."""
    gates: Gates = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Heads to scale or drop, in this request alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(JSONCall):
    """A request."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        data = Each((item.facts for item in encoded.items), plain=True)
        return {**encoded.preamble, "data": data, "usage": encoded.usage}


def parse(body: bytes, sent: Sent, served: Served) -> Classification:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    asked = ZeroShotRequest.model_validate_json(body)
    _check(asked, served)
    request = encode.Request(
        model=asked.model,
        inputs=[*_pairs(asked)],
        truncate=asked.truncate,
        documents=encode.Documents(whole=True),
        pooled=False,
        gates=[gate.plain() for gate in asked.gates],
        tasks=(encode.Entailment(),),
        ending=encode.ZeroShot(asked.labels, asked.multi_label),
    )
    return Classification(request=request)


def _pairs(asked: ZeroShotRequest) -> Iterator[encode.Input]:
    """Yield each text with what each label makes of the template."""
    hypotheses = [asked.hypothesis_template.replace(HOLE, label) for label in asked.labels]
    for text in asked.inputs:
        for hypothesis in hypotheses:
            yield encode.Input(text, hypothesis)


def _check(asked: ZeroShotRequest, served: Served) -> None:
    """Refuse no text, more pairs than a request may hold, and more characters than are read."""
    texts, labels = len(asked.inputs), len(asked.labels)
    if not texts:
        detail = "expected one text or more, received none"
        raise Refused.at("batch_empty", "inputs", detail=detail)
    if texts * labels > (limit := served.most_sequences):
        detail = f"{texts:,} inputs with {labels:,} labels each, and the limit is {limit:,} pairs"
        raise Refused("batch_too_large", detail=detail, limit=limit)
    # each text is tokenized with each label, and each label's hypothesis with each text
    read = sum(map(len, asked.inputs))
    _check_length("inputs", read, served.most_json // labels, f"{labels:,} labels")
    made = labels * len(asked.hypothesis_template) + sum(map(len, asked.labels))
    _check_length("labels", made, served.most_json // texts, f"{texts:,} inputs")


def _check_length(name: str, length: int, limit: int, others: str) -> None:
    if length > limit:
        whole = " in the template" if name == "labels" else ""
        detail = f"{length:,} characters{whole}, and with {others} the limit is {limit:,}"
        raise Refused.at("text_too_long", name, detail=detail, length=length, limit=limit)


ROUTES = (
    question(
        "/v1/classify",
        "Texts by labels of your own, with a model of natural language inference",
        ZeroShotRequest,
        parse,
        answer="Classified | Priced",
        inputs=OF_TEXT,
        more="As transformers' pipeline for zero-shot classification: each text and what the "
        "template makes of each label\nare a pair, and a label fits as far as the text entails "
        'it. It takes a classifier with a class whose name begins\nwith "entail": "zero_shot" '
        "in `tasks` of GET /info.",
    ),
)
