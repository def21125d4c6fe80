"""What a request asks: an API's parser makes it of a body, checked in form alone.

Nothing here imports torch, nor what does: the chart and the API document need the wire alone.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from model.text.tokenizer import Truncate, Truncation
from service.shapes.inputs import Texts
from service.shapes.price import Layout
from service.tables.wording.wire import Wire

if TYPE_CHECKING:  # the chart is rendered where there is no torch
    from service.shapes.answer import Answer

Chosen = TypeVar("Chosen")


class Documents(NamedTuple):
    """How documents to rank are read: second texts of pairs, or single texts; they may be empty.

    Args:
        most: how many tokens of each are read, the first ones; None: all.
        whole: whether a pair that is too long is cut in its first text alone.
    """

    most: int | None = None
    whole: bool = False


class Custom(NamedTuple):
    """How an API reads and answers, where it is not as our own: from a dialect to the question.

    Args:
        layout: how the answer's arrays are written.
        truncate: what the request says is to happen to a sequence that is too long.
        usual: what happens to it where neither request nor service says.
        most: tokens a sequence may have, special ones included, where fewer than the model takes.
        counted: whether the answer says how long texts are that are cut.
        prompt: the text of one, in place of the checkpoint's.
        instruction: in place of a prompt, of a model whose template has a place for it.
        documents: how texts are read that are documents.
        rerank: whether pairs are scored, by the task head for that.
    """

    layout: Layout = Layout()
    truncate: Truncation | None = None
    usual: Truncation = "refuse"
    most: int | None = None
    counted: bool = True
    prompt: str | None = None
    instruction: str | None = None
    documents: Documents | None = None
    rerank: bool = False


class Ask(Wire):
    """The request of a question, which is its wire class: checked in form alone.

    Attributes:
        question: import path of the class that answers it, as text: importing it takes torch.
        answer: what describes the answer, where answers.yaml does not.
    """

    question: ClassVar[str]
    answer: ClassVar[type[Wire] | None] = None

    if TYPE_CHECKING:  # what all of them say, each in words of its own
        model: str | None
        truncate: Truncate | None

    def chosen(self, field: str, usual: Chosen) -> Chosen:
        """Return a field that some requests have, such as `dtype`; `usual` if this one has none."""
        value: Chosen = getattr(self, field, usual)
        return value

    @abstractmethod
    def texts(self) -> Texts:
        """Return all texts, token ids and embeddings that the request asks about."""

    @abstractmethod
    def to_json(self, encoded: "Answer") -> dict[str, Any]:
        """Return the answer as nested JSON, with arrays, Records and Each as leaves."""


@runtime_checkable
class WritesFile(Protocol):
    """A request that is answered as a safetensors file too, where the client prefers one."""

    def write_file(self, encoded: "Answer") -> Iterator[bytes]:
        """Return the answer as a safetensors file, in pieces."""
