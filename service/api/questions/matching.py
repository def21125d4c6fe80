"""The wire of POST /v1/maxsim: a request model, strict, and the encoding that it asks for."""

from typing import Annotated, Literal

from pydantic import Discriminator, Tag, field_validator
from pydantic_core import PydanticCustomError

from model.text.tokenizer import Truncate
from service.api.native.heads import Gates
from service.api.native.request import EncodeRequest, Item, Side
from service.api.questions.comparison import NONE, Single, Singles
from service.wire import Wire
from service.wording.fault import Loc


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
    def _some(cls, documents: list[str | Item]) -> list[str | Item]:
        if not documents:
            raise PydanticCustomError("batch_empty", NONE)
        return documents

    def names(self) -> tuple[str | None, str | None]:
        """The prompt of each side."""
        if isinstance(self.prompt_name, SidePrompts):
            return self.prompt_name.query, self.prompt_name.document
        return self.prompt_name, self.prompt_name


class Matching(EncodeRequest):
    """The encoding that a score takes: the query first, then the documents."""

    matched: MaxsimRequest

    @classmethod
    def of(cls, request: MaxsimRequest) -> "Matching":
        """What a request takes: many vectors of each."""
        return cls.model_construct(
            model=request.model,
            inputs=[request.query, *request.documents],
            truncate=request.truncate,
            pooled=False,
            multi_vector=True,
            gates=request.gates,
            encoding=request.encoding,
            matched=request,
        )

    @property
    def sides(self) -> tuple[Side, ...]:
        """Each has its role, and may have a prompt of its own."""
        query, document = self.matched.names()
        return (
            Side(self.items[:1], query, role="query"),
            Side(self.items[1:], document, first=1, role="document"),
        )

    def place(self, loc: Loc) -> Loc:
        """inputs[0] is the query, and inputs[i + 1] is documents[i]."""
        match loc:
            case ("inputs", 0, *rest):
                return ("query", *rest)
            case ("inputs", int(index), *rest):
                return ("documents", index - 1, *rest)
            case _:
                return loc
