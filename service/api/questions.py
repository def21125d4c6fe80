"""POST /v1/similarity and POST /v1/maxsim: our own wire, JSON or safetensors."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, LiteralString

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.maps.choices import Level
from model.text.tokenizer import Truncate
from service.api.dialect import Sent, Served
from service.api.native import call as native
from service.api.native.call import Input, as_input
from service.api.native.heads import Gates, SweepField, swept
from service.encode import answer
from service.encode import request as encode
from service.encode.answer import Each, Encoded, Item, Records
from service.encode.request import Floats
from service.wire import Wire

MOST_K = 1 << 16  # pairs per text: all of two texts of 256 tokens
MOST_RIGHT = 256  # texts that one text is compared with

PAIR: LiteralString = 'texts are compared one by one here: no "pair" and no "spans"'
SCORE: LiteralString = '"level" and "specials" go with "form": "full" or "top"'
TOP: LiteralString = '"k" goes with "form": "top"'
NONE: LiteralString = "expected one input or more"
MANY: LiteralString = "it holds {count}, and the limit is {most}"


def _single(value: str | native.Item) -> str | native.Item:
    if isinstance(value, native.Item) and (value.pair, value.spans) != (None, None):
        raise PydanticCustomError("pair_in_comparison", PAIR)
    return value


Single = Annotated[Input, AfterValidator(_single)]
Singles = TypeAliasType("Singles", Annotated[list[Single], FailFast()])


class PromptNames(Wire):
    """A prompt for each side."""

    left: str | None = None
    """The prompt that goes before `left`; left out: `default_prompt_name` of GET /info."""
    right: str | None = None
    """The prompt that goes before each of `right`; left out: the same default."""


PromptName = Annotated[
    Annotated[str, Tag("<both>")] | Annotated[PromptNames, Tag("<each>")],
    Discriminator(lambda value: "<each>" if isinstance(value, dict | Wire) else "<both>"),
]


class ComparisonRequest(Wire):
    """The body of POST /v1/similarity."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    left: Single
    """A text, token ids or embeddings, as an input of POST /v1/encode."""
    right: Singles
    """What it is compared with: 1 to 256 of the same."""
    form: Literal["full", "top", "score"] = "full"
    """What to answer beside the score: the matrix of all pairs, the strongest pairs, or nothing."""
    k: Annotated[int, Field(ge=1, le=MOST_K)] | None = None
    """Of the form top: how many pairs to show, at most 65,536; 16 where left out."""
    level: Level = "token"
    """What a row and a column are; a word's share is the sum of its tokens' shares."""
    specials: Literal["keep", "drop"] = "keep"
    """What happens to special tokens, which carry a share too: "drop" leaves out their rows and
    columns, and counts them in `rest`."""
    prompt_name: PromptName | None = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each, as
    models for retrieval need it; left out: `default_prompt_name` of GET /info."""
    truncate: Truncate = "refuse"
    """What happens to a sequence of more than `max_tokens` tokens: it is refused, or cut on this
    side."""
    gates: Gates = []
    """Heads to scale or drop, in this request alone, on both sides."""
    sweep: SweepField | None = None
    """Heads to scale one at a time, in both texts at once: how each changes the score."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""
    dtype: Floats = "float32"
    """Number format of the arrays."""

    @field_validator("right")
    @classmethod
    def _some(cls, right: list[str | native.Item]) -> list[str | native.Item]:
        if not right:
            raise PydanticCustomError("batch_empty", NONE)
        if len(right) > MOST_RIGHT:
            size = {"count": f"{len(right):,}", "most": MOST_RIGHT}
            raise PydanticCustomError("batch_too_large", MANY, size)
        return right

    @model_validator(mode="after")
    def _of_its_form(self) -> "ComparisonRequest":
        """Refuse what a form does not read, as Attention does."""
        if self.k is not None and self.form != "top":
            raise PydanticCustomError("number_and_form", TOP)
        if self.form == "score" and (self.level, self.specials) != ("token", "keep"):
            raise PydanticCustomError("number_and_form", SCORE)
        return self

    def names(self) -> tuple[str | None, str | None]:
        """Return the prompt of each side."""
        if isinstance(self.prompt_name, PromptNames):
            return self.prompt_name.left, self.prompt_name.right
        return self.prompt_name, self.prompt_name

    def plain(self, layout: encode.Layout) -> encode.Request:
        """Return the encoding that it needs: the left text first, then those on the right.

        It asks for pooled vectors and, for more than a score, for those of tokens.
        """
        left, right = self.names()
        score = self.form == "score"
        return encode.Request(
            model=self.model,
            inputs=[as_input(self.left), *map(as_input, self.right)],
            truncate=self.truncate,
            prompt_name=right,
            first=encode.First(("left", "right"), left),
            tokens=not score,
            axes=None if score else encode.Axes(self.level, self.specials),
            gates=[gate.plain() for gate in self.gates],
            sweep=swept(self.sweep),
            ending=encode.Likeness(self.form, self.k),
            dtype=self.dtype,
            encoding=self.encoding,
            layout=layout,
        )


class SidePrompts(Wire):
    """A prompt for each side."""

    query: str | None = None
    """The prompt that goes before `query`; left out: `default_prompt_name` of GET /info."""
    document: str | None = None
    """The prompt that goes before each of `documents`; left out: the same default."""


class MaxsimRequest(Wire):
    """The body of POST /v1/maxsim."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: Single
    """What the documents are to answer: a text, token ids or embeddings, as an input of
    POST /v1/encode."""
    documents: Singles
    """What is scored: one or more of the same, with the query at most `max_sequences`."""
    prompt_name: (
        Annotated[
            Annotated[str, Tag("<both>")] | Annotated[SidePrompts, Tag("<each>")],
            Discriminator(
                lambda value: "<each>" if isinstance(value, dict | SidePrompts) else "<both>"
            ),
        ]
        | None
    ) = None
    """The checkpoint's prompt that goes before the texts: one for both sides, or one for each;
    left out: `default_prompt_name` of GET /info."""
    truncate: Truncate = "refuse"
    """What happens to a sequence of more tokens than the checkpoint gives its side: it is refused,
    or cut on this side."""
    gates: Gates = []
    """Heads to scale or drop, in this request alone, on both sides."""
    encoding: Literal["json", "base64"] = "json"
    """How arrays are written: as JSON numbers, or each as one base64 string."""

    @field_validator("documents")
    @classmethod
    def _some(cls, documents: list[str | native.Item]) -> list[str | native.Item]:
        if not documents:
            raise PydanticCustomError("batch_empty", NONE)
        return documents

    def names(self) -> tuple[str | None, str | None]:
        """Return the prompt of each side."""
        if isinstance(self.prompt_name, SidePrompts):
            return self.prompt_name.query, self.prompt_name.document
        return self.prompt_name, self.prompt_name

    def plain(self, layout: encode.Layout) -> encode.Request:
        """Return the encoding that it needs: the query's many vectors, then each document's."""
        query, document = self.names()
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


PAIRS = "pairs."  # prefix of the names of the arrays in one table


class Similarity(native.NativeCall):
    """A request of POST /v1/similarity."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        left, *right = encoded.items
        trees = Each(_tree(item, self.request.encoding) for item in right)
        return {**encoded.preamble, "left": left.facts, "right": trees, "usage": encoded.usage}

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        left, *right = encoded.items
        facts = {"left": left.facts, "right": [item.facts for item in right]}
        told = {**encoded.preamble, **facts, "usage": encoded.usage}
        return answer.as_file(told, dict(_tensors(right)))


def similarity(body: bytes, sent: Sent, served: Served) -> Similarity:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept, request = native.read(body, sent, served, ComparisonRequest)
    written = native.layout(request.encoding, accept)
    return Similarity(request=request.plain(written), media_type=accept)


def _tensors(right: list[Item]) -> Iterator[tuple[str, answer.Array]]:
    """Yield the arrays of each text on the right, by its number."""
    for index, item in enumerate(right):
        for name, array in item.arrays.items():
            yield f"{index}.{name}", array


def _tree(item: Item, encoding: str) -> dict[str, Any]:
    """Return one text on the right as nested dicts with arrays as leaves."""
    tree: dict[str, Any] = {**item.facts}
    tree |= {name: array for name, array in item.arrays.items() if not name.startswith(PAIRS)}
    columns = {
        name.removeprefix(PAIRS): array
        for name, array in item.arrays.items()
        if name.startswith(PAIRS)
    }
    if columns:
        tree["pairs"] = columns if encoding == "base64" else Records(columns, named=False)
    return tree


MATCHES = "matches."  # prefix of the names of the arrays of one document


class Matching(native.NativeCall):
    """A request of POST /v1/maxsim."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        query, *documents = encoded.items
        results = Each(_match_tree(item, self.request.encoding) for item in documents)
        return {
            **encoded.preamble,
            "query": query.facts,
            "results": results,
            "usage": encoded.usage,
        }

    def file(self, encoded: Encoded) -> Iterator[bytes]:
        query, *documents = encoded.items
        facts = {"query": query.facts, "results": [item.facts for item in documents]}
        told = {**encoded.preamble, **facts, "usage": encoded.usage}
        return answer.as_file(told, dict(_match_tensors(documents)))


def maxsim(body: bytes, sent: Sent, served: Served) -> Matching:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    accept, request = native.read(body, sent, served, MaxsimRequest)
    written = native.layout(request.encoding, accept)
    return Matching(request=request.plain(written), media_type=accept)


def _match_tensors(documents: list[Item]) -> Iterator[tuple[str, answer.Array]]:
    """Yield the arrays of each document, by its number in the request."""
    for item in documents:
        for name, array in item.arrays.items():
            yield f"{item.facts['index']}.{name}", array


def _match_tree(item: Item, encoding: str) -> dict[str, Any]:
    """Return one document as nested dicts with arrays as leaves."""
    columns = {name.removeprefix(MATCHES): array for name, array in item.arrays.items()}
    matches = columns if encoding == "base64" else Records(columns, named=False)
    return {**item.facts, "matches": matches}
