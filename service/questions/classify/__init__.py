"""POST /v1/classify: its request, and how its answer is written."""

from typing import Annotated, Any, ClassVar, LiteralString

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service.shapes.answer import Answer, Each
from service.shapes.ask import Ask
from service.shapes.inputs import Gates, Strings, Texts
from service.shapes.outputs import ScoreReason
from service.tables.wording.words import count_noun

LABEL_HOLE = "{}"  # where a template takes the label
DEFAULT_TEMPLATE = "This example is {}."
# Messages of validation errors
NO_LABEL: LiteralString = "expected one label or more, received none"
EMPTY_LABEL: LiteralString = "label {place} is empty"
LABEL_TWICE: LiteralString = "label {place} repeats an earlier one"
NO_HOLE: LiteralString = (
    'expected one "{}", where each label goes, and no other brace; received {braces}'
)


def _check_distinct(labels: list[str]) -> list[str]:
    """Return labels; refuse none, an empty one, and one that occurs twice."""
    if not labels:
        raise PydanticCustomError("labels_distinct", NO_LABEL)
    seen: set[str] = set()
    for place, label in enumerate(labels):
        if not label or label in seen:
            message = LABEL_TWICE if label else EMPTY_LABEL
            raise PydanticCustomError("labels_distinct", message, {"place": place})
        seen.add(label)
    return labels


def _check_template(template: str) -> str:
    """Return a template; refuse one without exactly one place for a label."""
    braces = template.count("{") + template.count("}")
    if LABEL_HOLE not in template or braces != len(LABEL_HOLE):
        raise PydanticCustomError("template_hole", NO_HOLE, {"braces": count_noun(braces, "brace")})
    return template


Labels = TypeAliasType("Labels", Annotated[Strings, AfterValidator(_check_distinct)])


class ZeroShotRequest(Ask):
    """The body of POST /v1/classify."""

    question: ClassVar = "service.questions.classify.question:Classification"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    inputs: Strings
    """The texts to classify: 1 or more, with each label at most `max_sequences` pairs."""
    labels: Labels
    """What a text may be: 1 or more, each once."""
    hypothesis_template: Annotated[str, AfterValidator(_check_template)] = DEFAULT_TEMPLATE
    """What is said of a text, with "{}" where the label goes."""
    multi_label: bool = False
    """Whether several labels may fit a text, each scored by itself; false: the scores of its labels
    sum to 1."""
    truncate: Truncate | None = None
    """What happens to a text that has more than `max_tokens` tokens with its label and the
    template: it is refused, or cut on this side. The label and the template are never cut."""
    gates: Gates = ()  # type: ignore[assignment]  # pydantic copies a list for each request
    """Heads to scale or drop, in this request alone."""
    reason: ScoreReason | None = None
    """Which tokens or words of each text, and of what the template makes of labels, the best label
    rests on: its logit of entailment less that of the next label, or of several labels that may fit
    less its own of contradiction."""

    def texts(self) -> Texts:
        return self.inputs

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the answer as JSON: for each text its labels with their scores, best first."""
        data = Each(item.facts for item in encoded.items)
        return {**encoded.preamble, "data": data, "usage": encoded.usage}
