"""A task of a checkpoint's head that a request names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model.task_heads import TaskHead
from service.shapes.answer import TaskAnswer
from service.shapes.work import Array, Work

Arrays = Mapping[str, Array]  # output of a task head for one sequence, by name


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a request names: its head, and how an answer shows its output."""

    head: TaskHead  # the head with the request's options
    show: Callable[[Work, Arrays], TaskAnswer]  # of the head's output for a work
    words: bool = False  # whether the inputs must have words
    fit: Callable[[Work], TaskHead] | None = None  # returns the head for one input; None: `head`
    no_ids_detail: str = ""  # of the refusal of an input without token ids; "": it needs none
    shows: bool = False  # whether the answer shows the tokens

    def fitted(self, work: Work) -> TaskHead:
        """Return the head for one input."""
        return self.fit(work) if self.fit else self.head
