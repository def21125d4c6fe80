"""Which texts a question reads alike, how, and what is wanted of each."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from model.text.tokenizer import Truncation
from service.shapes.ask import Documents
from service.shapes.inputs import Texts
from service.tables.wording.words import Loc

if TYPE_CHECKING:  # the wire needs places, where there may be no torch
    from model.text.frame import Role
    from service.shapes.task import Task
    from service.shapes.work import Outputs

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
        bare: whether texts are parts of longer sequences: without special tokens, and whole; all
            together may have `most` tokens.
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
    bare: bool = False


def place_of_work(sides: Sequence[Side], number: int, *field: str | int) -> Loc:
    """Return where in the request the text of the `number`-th work stands, or a field of it."""
    for side in sides:
        if number < len(side.inputs):
            return side.at(number, *field)
        number -= len(side.inputs)
    raise IndexError("a work of no side: this is a bug")
