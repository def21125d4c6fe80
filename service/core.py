"""What travels through the service: each shape once, and which stage fills each field.

    Ask     an API's parser makes it of a body: the wire class of a question, checked in form alone
    Custom  the same parser says how that API reads and answers, where not as our own
    Side    a question says which texts are read alike, how, and what is wanted of each
    Work    the reader makes one of each text (engine/work.py); a lane gives it its result
    Step    a question says which works run together, and what follows from them

Nothing here imports torch, nor what does: the chart and the API document need the wire alone.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    get_args,
    runtime_checkable,
)

from model.text.tokenizer import Truncate, Truncation
from service.inputs import Floats, Gate, Texts
from service.observe.record import Record
from service.wire import Wire
from service.wording.words import Loc

if TYPE_CHECKING:  # the chart is rendered where there is no torch
    from model.text.frame import Role
    from service.encode.answer import Encoded, Item
    from service.encode.price import Price
    from service.encode.tasks import Task
    from service.engine.work import Outputs, Work


class Documents(NamedTuple):
    """How documents to rank are read: second texts of pairs, or single texts; they may be empty.

    Args:
        most: how many tokens of each are read, the first ones; None: all.
        whole: whether a pair that is too long is cut in its first text alone.
    """

    most: int | None = None
    whole: bool = False


# The parts of an answer that are arrays, or that many numbers
Part = Literal[
    "pooled", "tokens", "layers", "attention", "task", "sweep", "shares", "matches", "steps"
]
PARTS: frozenset[Part] = frozenset(get_args(Part))


class Layout(NamedTuple):
    """How an answer's arrays are written, which its price depends on.

    Args:
        numbers: the parts that are JSON numbers; the others come as bytes.
        padded: whether sequences are padded to the longest.
        times: how often the arrays are written, on average.
        extra_bytes: written in addition to the arrays.
        named: whether each array stands by its name in the header of a file.
    """

    numbers: Collection[Part] = PARTS
    padded: bool = False
    times: float = 1.0
    extra_bytes: int = 0
    named: bool = False


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
        gates: Sequence[Gate]

    @property
    def number_format(self) -> Floats:
        """Return the format of the answer's numbers, where the request may choose it."""
        dtype: Floats = getattr(self, "dtype", "float32")
        return dtype

    @property
    def array_encoding(self) -> Literal["json", "base64"]:
        """Return how arrays are written in JSON, where the request may choose it."""
        encoding: Literal["json", "base64"] = getattr(self, "encoding", "json")
        return encoding

    @abstractmethod
    def texts(self) -> Texts:
        """Return all texts, token ids and embeddings that the request asks about."""

    @abstractmethod
    def to_json(self, encoded: "Encoded") -> dict[str, Any]:
        """Return the answer as nested JSON, with the arrays, Records and Each of answer.py."""


@runtime_checkable
class WritesFile(Protocol):
    """A request that is answered as a safetensors file too, where the client prefers one."""

    def write_file(self, encoded: "Encoded") -> Iterator[bytes]:
        """Return the answer as a safetensors file, in pieces."""


# Returns the place in a request of a text, by its number, or of a field of it, by its names
Placer = Callable[..., Loc]


def place_in_list(name: str) -> Placer:
    """Return the Placer of texts in a list, the request's field `name`."""
    return lambda number, *field: (name, number, *field)


def place_alone(name: str) -> Placer:
    """Return the Placer of a text that is itself the request's field `name`."""
    return lambda number, *field: (name, *field)


PLACE_INPUTS = place_in_list("inputs")


class Side(NamedTuple):
    """Texts that are read alike, and what is wanted of each: from a question to the reader.

    Args:
        inputs: texts, token ids or embeddings.
        outputs: what the model makes of each.
        at: where they stand in the request as it was sent.
        cut: what happens to a sequence that is too long; "own" is the checkpoint's side.
        most: tokens a sequence may have, special ones included, where fewer than the model takes.
        counted: whether the answer says how long texts are that are cut.
        facts: whether the answer shows the tokens.
        prompt_name: of what goes before each text; None: the adapter's or the checkpoint's.
        prompt: what goes before each text, where it is none of the checkpoint's.
        instruction: in place of a prompt, of a model whose template has a place for it.
        adapter: its name.
        role: the side of a late interaction or of a search.
        documents: how the last text of each is read, where it is a document.
        tasks: for the checkpoint's heads, checked and fitted by what was read.
        filled: whether a sequence of many vectors must keep at least one of its tokens.
        vectors: whether vectors are answered or make the scores, so that their space counts.
        each: how many works a text of the client's makes, to count each text that is cut once.
    """

    inputs: Texts
    outputs: "Outputs"
    at: Placer = PLACE_INPUTS
    cut: Truncation = "refuse"
    most: int | None = None
    counted: bool = True
    facts: bool = False
    prompt_name: str | None = None
    prompt: str | None = None
    instruction: str | None = None
    adapter: str | None = None
    role: "Role | None" = None
    documents: Documents | None = None
    tasks: "Sequence[Task]" = ()
    filled: bool = False
    vectors: bool = False
    each: int = 1


def place_of_work(sides: Sequence[Side], number: int, *field: str | int) -> Loc:
    """Return where in the request the text of the `number`-th work stands, or a field of it."""
    for side in sides:
        if number < len(side.inputs):
            return side.at(number, *field)
        number -= len(side.inputs)
    raise IndexError("a work of no side: this is a bug")


class Step(NamedTuple):
    """Works that run together, and what follows: from a question to admission.

    Args:
        works: those of a request's first step begin with one for each text.
        then: returns the next step, once these have their results; None: there is none.
        follow: examples of works that may follow, and how often: admitted with these.
        held: bytes that a first step keeps until the end, besides the answer.
    """

    works: "Sequence[Work]"
    then: "Callable[[], Awaitable[Step | None]] | None" = None
    follow: "Sequence[tuple[Work, int]]" = ()
    held: int = 0

    @property
    def every(self) -> "list[tuple[Work, int]]":
        """Return the works and those that may follow, each with how often it runs."""
        return [*((work, 1) for work in self.works), *self.follow]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the works and of those that may follow."""
        return sum(map(len, self.works)) + sum(len(work) * count for work, count in self.follow)

    @property
    def sequences(self) -> int:
        """Return the number of works, with those that may follow."""
        return len(self.works) + sum(count for _, count in self.follow)


ReadSide = Callable[[Side], "Awaitable[list[Work]]"]  # reads a side to works, one for each text


class Question(Protocol):
    """One request: how it is read, run and answered, in this order; Ask says how it is written."""

    def sides(self) -> Sequence[Side]:
        """Return the sides to read; raises Refused for what this model lacks."""

    async def plan(
        self, works: "list[Work]", read: ReadSide, deadline: float, record: Record
    ) -> Step:
        """Return the first step, which leads to the others.

        Args:
            works: of all sides, in their order.
            read: reads further sides, whose texts are made on the way.
            deadline: when the answer must be ready, on time.monotonic's clock.
            record: of the request, to which what is read on the way is added.
        """

    def price(self, step: Step) -> "Price":
        """Return the bytes of memory that the answer will take, by its parts."""

    async def make_items(self, deadline: float) -> "Iterable[Item]":
        """Return the answer's items, in their order; called when the works have their results."""
