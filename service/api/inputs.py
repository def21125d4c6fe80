"""The inputs of other APIs: texts or token ids, and the prompts for their purposes."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from model.text.tokenizer import Truncate
from service.pipeline.find.names import why_not_dense
from service.shapes import inputs
from service.shapes.call import ModelFacts
from service.shapes.inputs import InputItem, Strings
from service.tables.refusals import Refused
from service.tables.wording.wire import Integers
from service.tables.wording.words import quote_names

Sequences = TypeAliasType("Sequences", Annotated[list[Integers], FailFast()])
Dimensions = Annotated[int, Field(ge=1)]  # how many numbers of a vector to keep
MostTokens = Annotated[  # vLLM's truncate_prompt_tokens
    Literal[-1] | Annotated[int, Field(ge=1)],
    AfterValidator(lambda most: UNBOUNDED if most == -1 else most),
]
UNBOUNDED = 2**31  # more tokens than any model takes
CutEnd = Literal["NONE", "START", "END"]  # where Cohere's and NIM's requests have a text cut
END_CUTS: Mapping[CutEnd, Truncate] = {"NONE": "refuse", "START": "left", "END": "right"}
MOST_PROMPT_CHARACTERS = 4096
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names of prompts of documents
# Names of prompts for a purpose of texts: the first that the checkpoint has is used, where it has
# none of the purpose's own name
PROMPTS_BY_PURPOSE = {
    **dict.fromkeys(("search_query", "retrieval.query"), ("query",)),
    **dict.fromkeys(
        ("search_document", "retrieval.passage", "document", "passage"), DOCUMENT_PROMPTS
    ),
    "clustering": ("separation",),
    "separation": ("clustering",),
}


def tag_form(value: object) -> str:
    """Return the tag of the member of TextsOrIds that an input is, by its first entry."""
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<sequences>"
    return "<texts>" if isinstance(first, str) else "<ids>"


Text = Annotated[str, Tag("<text>")]
Texts = Annotated[Strings, Tag("<texts>")]
Ids = Annotated[Integers, Tag("<ids>")]
Batch = Annotated[Sequences, Tag("<sequences>")]
TextsOrIds = TypeAliasType(
    "TextsOrIds", Annotated[Text | Texts | Ids | Batch, Discriminator(tag_form)]
)


def make_inputs(value: str | Sequence[str | int | list[int]]) -> inputs.Texts:
    """Convert a text, texts, token ids or lists of token ids to native inputs."""
    if isinstance(value, str):
        return [value]
    ids = [entry for entry in value if isinstance(entry, int)]
    if ids:
        return [InputItem.model_construct(token_ids=ids)]
    return [
        InputItem.model_construct(token_ids=entry) if isinstance(entry, list) else str(entry)
        for entry in value
    ]


def find_prompt(field: str, purpose: str, served: ModelFacts) -> str | None:
    """Return the name of the checkpoint's prompt for a purpose of texts; None: it has none.

    Raises:
        Refused: the purpose, a value of this field, is in another case the name of two prompts.
    """
    names = (purpose, *PROMPTS_BY_PURPOSE.get(purpose.lower(), ()))
    found = (find_spelling(field, name, served.prompts) for name in names)
    return next((name for name in found if name), None)


def find_spelling(field: str, name: str, names: Collection[str]) -> str | None:
    """Return this name if it is one of `names`, else the one that differs only in case; or None.

    Raises:
        Refused: several differ only in case.
    """
    if name in names:
        return name
    spellings = [known for known in names if known.lower() == name.lower()]
    if len(spellings) > 1:
        detail = f"this model has {quote_names(spellings, 'and')}, and the name may mean any"
        raise Refused.at("prompt_not_found", field, detail=detail, prompts=spellings)
    return spellings[0] if spellings else None


def check_prompt(prompt: str, texts: int, served: ModelFacts) -> None:
    """Refuse a request's own prompt that is too long to be put before each of so many texts."""
    limit = min(MOST_PROMPT_CHARACTERS, served.most_json // max(texts, 1))
    if len(prompt) > limit:
        raise Refused.at("text_too_long", "prompt", length=len(prompt), limit=limit)


def check_dense(tasks: Collection[str]) -> None:
    """Refuse a request for dense vectors of a model that is made for something else.

    Args:
        tasks: the model's.
    """
    detail = why_not_dense(tasks)
    if detail:
        raise Refused("task_not_found", detail=detail, tasks=list(tasks))
