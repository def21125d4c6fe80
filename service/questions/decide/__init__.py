"""What is decided of a state: questions with options, in the form that every API's becomes."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.decisions import Kind
from model.maps.choices import Level
from model.text.tokenizer import Truncate
from service.shapes.answer import Answer
from service.shapes.ask import Ask
from service.shapes.inputs import Floats, Listed, Texts
from service.tables.wording.wire import Wire

MOST_QUESTIONS = 400  # of a state, as OpenAI's API has it
MOST_OPTIONS = 255  # of a question, likewise
MOST_ORDERS = 16  # other orders of a question's options


class DecisionOption(Wire):
    """One of the options of a question."""

    name: str
    """What answers call it, and the model too where it has no description."""
    description: str | None = None
    """What it stands for: a text, or one line of JSON."""


class DecisionQuestion(Wire):
    """One question of a state."""

    name: str
    """What answers call it."""
    type: Kind
    """What is asked: yes or no, one of several options, or a level."""
    instructions: str | None = None
    """What to decide: a text, or one line of JSON."""
    options: list[DecisionOption]
    """The options, no two of which read alike: of "noul" those named "false" and "true", of "score"
    its levels, lowest first."""
    labels: tuple[str, str] | None = None
    """Of "noul": what the model reads for "false" and for "true"."""
    order: list[int] | None = None
    """In which order the model reads the options, by their numbers, each once."""


class Reason(Wire):
    """How to tell what a decision rests on."""

    method: Literal["alone", "input"]
    """"alone": how far the margin falls without each word of the state; "input": the exact share of
    the margin that comes from each word of the whole sequence."""
    level: Level = "word"
    """What a share is of."""
    control: bool = False
    """Whether to answer, too, the margin without the strongest words, and without as many random
    ones."""


class MarkerRows(Wire):
    """What the options' mask tokens attend to."""

    layers: Literal["all"] | Listed = "all"
    """The layers to show, counted from 0 through the encoder's and then the head's, or from the
    last by negative numbers."""
    dtype: Floats = "float32"
    """Number format of the rows."""


class DecideRequest(Ask):
    """Questions of one state."""

    question: ClassVar = "service.questions.decide.question:Decision"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    state: str
    """What is decided about: a text, or one line of JSON."""
    turns: bool = False
    """Whether the state is a list, of which a cut keeps the end."""
    questions: list[DecisionQuestion]
    """The questions, each answered by itself."""
    truncate: Truncate | None = None
    """What happens to a question or a state that does not fit: it is refused, or cut as the model's
    own library does."""
    reason: Reason | None = None
    """Whether, and how, to tell what each decision rests on."""
    orders: Annotated[int, Field(ge=0, le=MOST_ORDERS)] = 0
    """In how many other orders of the options to ask each question again."""
    attention: MarkerRows | None = None
    """Which attention of the options' mask tokens to show."""

    def texts(self) -> Texts:
        return [self.state]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the facts of every question, as dialects write them in their own forms."""
        return {**encoded.preamble, "data": [item.facts for item in encoded.items]}
