"""POST /v1/similarity: its request, and how its answer is written."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, LiteralString

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from model.maps.choices import Level
from model.text.tokenizer import Truncate
from service.questions import compared
from service.questions.compared import BothOr, Single, Singles
from service.shapes.answer import Answer
from service.shapes.ask import Ask
from service.shapes.inputs import Floats, Gates, InputItem, SweepField, Texts
from service.tables.wording.wire import Wire

MOST_K = 1 << 16  # most pairs to show of each text on the right: all of two texts of 256 tokens
MOST_RIGHT = 256  # most texts on the right

EXPLAINED_FORMS = ("full", "top")  # forms that show shares, whose sum is the score

# Messages of validation errors
NOT_WITH_SCORE: LiteralString = '"level" and "specials" go with every form but "form": "score"'
NOT_WITH_OCCLUSION: LiteralString = (
    '"form": "occlusion" leaves tokens out: no "sweep", which goes with the other forms, and no '
    '"patch", whose texts are of one length'
)
NOT_BY_INPUT: LiteralString = (
    '"by": "input" goes with "form": "full" or "top", and without "sweep" and "patch"'
)
NOT_BY_HEAD: LiteralString = (
    '"by": "head" goes without "form", "level", "specials", "sweep" and "patch"'
)
PAIR_NEEDS_SWEEP: LiteralString = '"sweep_pair" goes with "sweep", and "form": "full" or "top"'
K_NEEDS_TOP: LiteralString = '"k" goes with "form": "top"'
TOO_MANY_RIGHT: LiteralString = "expected at most {most}, received {count}"


class SideTasks(Wire):
    """An adapter for each side."""

    left: str | None = None
    """The adapter that `left` is read with; left out: the one that `model` names, or none."""
    right: str | None = None
    """The adapter that each of `right` is read with; left out: the same."""


class PromptNames(Wire):
    """A prompt for each side."""

    left: str | None = None
    """The prompt that goes before `left`; left out: `default_prompt_name` of GET /info."""
    right: str | None = None
    """The prompt that goes before each of `right`; left out: the same default."""


class ComparisonRequest(Ask):
    """The body of POST /v1/similarity."""

    question: ClassVar = "service.questions.similarity.question:Similarity"

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    left: Single
    """A text, token ids or embeddings, as an input of POST /v1/encode."""
    right: Singles
    """What it is compared with: 1 to 256 of the same."""
    form: Literal["full", "top", "score", "occlusion"] = "full"
    """What to answer besides the score: the matrix of all pairs, the strongest, nothing, or what
    each token or word is worth, by leaving it out, which every model answers."""
    by: Literal["layer", "input", "head"] = "layer"
    """What shares are of: token vectors of the last layer, each of which has seen the whole text;
    or the tokens that enter the model, with the pass's attention and gates kept as they were, also
    where a single token's vector is the text's; or each head of each layer, likewise."""
    k: Annotated[int, Field(ge=1, le=MOST_K)] | None = None
    """Of the form top: how many pairs to show, at most 65,536; 16 where left out."""
    level: Level = "token"
    """What a row and a column are; a word's share is the sum of its tokens' shares."""
    specials: Literal["keep", "drop"] = "keep"
    """What happens to special tokens, which carry a share too: "drop" leaves out their rows and
    columns, and counts them in `rest`."""
    prompt_name: BothOr[PromptNames] | None = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each, as
    models for retrieval need it; left out: the task's instruction or, without one,
    `default_prompt_name` of GET /info."""
    task: BothOr[SideTasks] | None = None
    """The adapter that texts are read with, as in POST /v1/encode: one for both sides, or one for
    each, as "retrieval.query" and "retrieval.passage"."""
    truncate: Truncate | None = None
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side; left out or null: `truncate` of GET /info."""
    gates: Gates = []
    """Heads to scale or drop, in this request alone, on both sides."""
    sweep: SweepField | None = None
    """Heads to scale one at a time, in both texts at once: how each changes the score."""
    sweep_pair: (
        Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)] | None
    ) = None
    """With `sweep`: a row and a column of the matrix, counted from 0, to answer how each head
    changes their share too."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""
    dtype: Floats = "float32"
    """Number format of the arrays."""

    @field_validator("right")
    @classmethod
    def _check_count(cls, right: list[str | InputItem]) -> list[str | InputItem]:
        """Return the texts on the right; refuse more than the limit."""
        if len(right) > MOST_RIGHT:
            size = {"count": f"{len(right):,}", "most": MOST_RIGHT}
            raise PydanticCustomError("batch_too_large", TOO_MANY_RIGHT, size)
        return right

    @model_validator(mode="after")
    def _check_form(self) -> "ComparisonRequest":
        """Return the request; refuse fields that its form would ignore."""
        if self.k is not None and self.form != "top":
            raise PydanticCustomError("number_and_form", K_NEEDS_TOP)
        if self.sweep_pair is not None and (self.sweep is None or self.form == "score"):
            raise PydanticCustomError("number_and_form", PAIR_NEEDS_SWEEP)
        if self.form == "score" and (self.level, self.specials) != ("token", "keep"):
            raise PydanticCustomError("number_and_form", NOT_WITH_SCORE)
        items = [text for text in (self.left, *self.right) if isinstance(text, InputItem)]
        intervenes = self.sweep is not None or any(item.patch for item in items)
        if self.form == "occlusion" and intervenes:
            raise PydanticCustomError("number_and_form", NOT_WITH_OCCLUSION)
        if self.by == "input" and (self.form not in EXPLAINED_FORMS or intervenes):
            raise PydanticCustomError("number_and_form", NOT_BY_INPUT)
        usual = (self.form, self.level, self.specials) == ("full", "token", "keep")
        if self.by == "head" and (not usual or intervenes):
            raise PydanticCustomError("number_and_form", NOT_BY_HEAD)
        return self

    def texts(self) -> Texts:
        """Return the left text, then those on the right."""
        return [self.left, *self.right]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the answer as JSON: the left text, then each right one's score and any shares.

        The arrays named "pairs.", of the form top, become one field.
        """
        return compared.to_json(encoded, "left", "right", "pairs.", self.encoding)

    def write_file(self, encoded: Answer) -> Iterator[bytes]:
        return compared.write_file(encoded, "left", "right")
