"""POST /v1/similarity and POST /v1/maxsim: our own wire."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, LiteralString

from pydantic import AfterValidator, Field, field_validator, model_validator
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.maps.choices import Level
from model.text.tokenizer import Truncate
from service.api.dialect import Sent, Served
from service.api.native.call import Input, as_input
from service.api.native.call import Item as InputItem
from service.api.native.heads import Gates, SweepField, swept
from service.api.own import FILE, BothOr, NativeCall, SidePrompts, accepted, layout, question
from service.encode import answer
from service.encode import request as encode
from service.encode.answer import Each, Encoded, Item, Records
from service.encode.request import Floats
from service.wire import Wire

MOST_K = 1 << 16  # pairs per text: all of two texts of 256 tokens
MOST_RIGHT = 256  # texts that one text is compared with

PAIR: LiteralString = 'texts are compared one by one here: no "pair" and no "spans"'
SCORE: LiteralString = '"level" and "specials" go with every form but "form": "score"'
OCCLUDED: LiteralString = (
    '"form": "occlusion" leaves tokens out: no "sweep", which goes with the other forms, and no '
    '"patch", whose texts are of one length'
)
SWEPT_PAIR: LiteralString = '"sweep_pair" goes with "sweep", and "form": "full" or "top"'
TOP: LiteralString = '"k" goes with "form": "top"'
NONE: LiteralString = "expected one input or more"
MANY: LiteralString = "it holds {count}, and the limit is {most}"


def _single(value: str | InputItem) -> str | InputItem:
    if isinstance(value, InputItem) and (value.pair, value.spans) != (None, None):
        raise PydanticCustomError("pair_in_comparison", PAIR)
    return value


def _some(inputs: list[str | InputItem]) -> list[str | InputItem]:
    if not inputs:
        raise PydanticCustomError("batch_empty", NONE)
    return inputs


Single = Annotated[Input, AfterValidator(_single)]
Singles = TypeAliasType("Singles", Annotated[list[Single], FailFast(), AfterValidator(_some)])


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


class ComparisonRequest(Wire):
    """The body of POST /v1/similarity."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    left: Single
    """A text, token ids or embeddings, as an input of POST /v1/encode."""
    right: Singles
    """What it is compared with: 1 to 256 of the same."""
    form: Literal["full", "top", "score", "occlusion"] = "full"
    """What to answer besides the score: the matrix of all pairs, the strongest, nothing, or what
    each token or word is worth, by leaving it out, which every model answers."""
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
    def _few(cls, right: list[str | InputItem]) -> list[str | InputItem]:
        if len(right) > MOST_RIGHT:
            size = {"count": f"{len(right):,}", "most": MOST_RIGHT}
            raise PydanticCustomError("batch_too_large", MANY, size)
        return right

    @model_validator(mode="after")
    def _of_its_form(self) -> "ComparisonRequest":
        """Refuse what a form does not read, as Attention does."""
        if self.k is not None and self.form != "top":
            raise PydanticCustomError("number_and_form", TOP)
        if self.sweep_pair is not None and (self.sweep is None or self.form == "score"):
            raise PydanticCustomError("number_and_form", SWEPT_PAIR)
        if self.form == "score" and (self.level, self.specials) != ("token", "keep"):
            raise PydanticCustomError("number_and_form", SCORE)
        sides = [one for one in (self.left, *self.right) if isinstance(one, InputItem)]
        changed = self.sweep is not None or any(one.patch for one in sides)
        if self.form == "occlusion" and changed:
            raise PydanticCustomError("number_and_form", OCCLUDED)
        return self

    def plain(self, layout: encode.Layout) -> encode.Request:
        """Return the encoding that it needs: the left text first, then those on the right.

        It asks for pooled vectors and, where shares are made of them, for those of tokens.
        """
        names = self.prompt_name
        left, right = (
            (names.left, names.right) if isinstance(names, PromptNames) else (names, names)
        )
        task = self.task
        own, other = (task.left, task.right) if isinstance(task, SideTasks) else (task, task)
        score = self.form == "score"
        return encode.Request(
            model=self.model,
            inputs=[as_input(self.left), *map(as_input, self.right)],
            truncate=self.truncate,
            prompt_name=right,
            task=other,
            first=encode.First(("left", "right"), left, task=own),
            tokens=self.form in ("full", "top"),
            axes=None if score else encode.Axes(self.level, self.specials),
            gates=[gate.plain() for gate in self.gates],
            sweep=swept(self.sweep),
            ending=encode.Likeness(self.form, self.k, _pair(self.sweep_pair)),
            dtype=self.dtype,
            encoding=self.encoding,
            layout=layout,
        )


def _pair(places: list[int] | None) -> tuple[int, int] | None:
    return (places[0], places[1]) if places else None


class MaxsimRequest(Wire):
    """The body of POST /v1/maxsim."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: Single
    """What the documents are to answer: a text, token ids or embeddings, as an input of
    POST /v1/encode."""
    documents: Singles
    """What is scored: one or more of the same, with the query at most `max_sequences`."""
    prompt_name: BothOr[SidePrompts] | None = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each;
    left out: `default_prompt_name` of GET /info."""
    truncate: Truncate | None = None
    """What happens to a sequence of more tokens than the checkpoint gives its side: it is refused,
    or cut on this side; left out or null: `truncate` of GET /info."""
    gates: Gates = []
    """Heads to scale or drop, in this request alone, on both sides."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""

    def plain(self, layout: encode.Layout) -> encode.Request:
        """Return the encoding that it needs: the query's many vectors, then each document's."""
        names = self.prompt_name
        query, document = (
            (names.query, names.document) if isinstance(names, SidePrompts) else (names, names)
        )
        return encode.Request(
            model=self.model,
            inputs=[as_input(self.query), *map(as_input, self.documents)],
            truncate=self.truncate,
            prompt_name=document,
            role="document",
            first=encode.First(("query", "documents"), query, "query"),
            pooled=False,
            gates=[gate.plain() for gate in self.gates],
            tasks=(encode.MultiVector(filled=True),),
            ending=encode.Maxsim(),
            encoding=self.encoding,
            layout=layout,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(NativeCall):
    """A request of POST /v1/similarity or POST /v1/maxsim: one input, and others compared with it.

    Args:
        one, others: what the answer calls them.
        table: the prefix of the names of the arrays that are one table.
    """

    one: str
    others: str
    table: str

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        one, *others = encoded.items
        return self._with_facts(encoded, one, Each(map(self._tree, others)))

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        one, *others = encoded.items
        arrays = {
            f"{item.facts.get('index', place)}.{name}": array  # as in the request
            for place, item in enumerate(others)
            for name, array in item.arrays.items()
        }
        return answer.as_file(
            self._with_facts(encoded, one, [item.facts for item in others]), arrays
        )

    def _with_facts(self, encoded: Encoded, one: Item, others: Any) -> dict[str, Any]:
        sides = {self.one: one.facts, self.others: others}
        return {**encoded.preamble, **sides, "usage": encoded.usage}

    def _tree(self, item: Item) -> dict[str, Any]:
        """Return one of the others as nested dicts with arrays as leaves."""
        tree: dict[str, Any] = {**item.facts}
        columns = dict[str, answer.Array]()
        for name, array in item.arrays.items():
            short = name.removeprefix(self.table)
            (tree if short == name else columns)[short] = array
        if columns:
            binary = self.request.encoding == "base64"
            tree[self.table[:-1]] = columns if binary else Records(columns, named=False)
        return tree


def similarity(body: bytes, sent: Sent, served: Served) -> Comparison:
    """Read a request of POST /v1/similarity.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept, asked = accepted(sent), ComparisonRequest.model_validate_json(body)
    request = asked.plain(layout(asked.encoding, accept))
    return Comparison(
        request=request, media_type=accept, one="left", others="right", table="pairs."
    )


def maxsim(body: bytes, sent: Sent, served: Served) -> Comparison:
    """Read a request of POST /v1/maxsim; raises as `similarity` does."""
    accept, asked = accepted(sent), MaxsimRequest.model_validate_json(body)
    request = asked.plain(layout(asked.encoding, accept))
    return Comparison(
        request=request, media_type=accept, one="query", others="results", table="matches."
    )


ROUTES = (
    question(
        "/v1/similarity",
        "Why one text is like others: each cosine, and the pairs of tokens that make it",
        ComparisonRequest,
        similarity,
        answer="Compared | Priced",
        answer_media=FILE,
    ),
    question(
        "/v1/maxsim",
        "Many vectors: how well each document answers a query, and which tokens match",
        MaxsimRequest,
        maxsim,
        answer="Matched | Priced",
        answer_media=FILE,
    ),
)
