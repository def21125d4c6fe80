"""JSON answers of POST /v1/systemone -> typed values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headlight_client.errors import expect_format
from headlight_client.formats import to_pair
from headlight_client.pictures import Picture, draw_words
from headlight_client.reprs import with_short_repr


class Share(NamedTuple):
    """What one word or token adds to a margin, or what the margin loses without it.

    Args:
        characters: where it stands in the text of its part, [start, end).
    """

    text: str
    characters: tuple[int, int]
    share: float


@with_short_repr
@dataclass(frozen=True, slots=True)
class ReasonPart:
    """A part of what the model read.

    Args:
        part: instructions, option or state.
        name: of an option.
        share: the sum of those of its words.
        units: its words or tokens, in order.
    """

    part: Literal["instructions", "option", "state"]
    name: str | None
    share: float
    units: Sequence[Share]


class LeftOut(NamedTuple):
    """The margin without the strongest words of the state, and without as many random others."""

    left_out: Sequence[str]  # the strongest
    without: float
    without_random: float | None  # mean; None: there are no others
    deviation: float | None  # None of fewer than two draws


@dataclass(frozen=True, slots=True, repr=False)
class Reason:
    """The words that a decision rests on.

    Args:
        method: "alone": what the margin loses without each word of the state; "input": what each
            word adds to the margin.
        level: what a share is of.
        first, second: the most probable option and the next; of yes or no "true" and "false".
        margin: the logit of the first less that of the second, before the temperature.
        parts: each with its words; with "alone" the state alone.
        special, rest: what special tokens and biases add, so that with the parts they sum to the
            margin; None with "alone".
        control: None without control, or where no word speaks for the first option.
    """

    method: Literal["alone", "input"]
    level: Literal["word", "token"]
    first: str
    second: str
    margin: float
    parts: Sequence[ReasonPart]
    special: float | None
    rest: float | None
    control: LeftOut | None

    def __repr__(self) -> str:
        words = ", ".join(f"{word.text} {word.share:+.2f}" for word in self.strongest())
        return f"Reason({self.first!r} over {self.second!r} by {self.margin:.2f}: {words})"

    def strongest(self, count: int = 3) -> list[Share]:
        """Return the words of the state that speak most for the first option, strongest first."""
        state = [unit for part in self.parts if part.part == "state" for unit in part.units]
        return sorted((unit for unit in state if unit.share > 0), key=_by_share)[:count]


class Orders(NamedTuple):
    """How far an answer moves when the model reads its options in other orders.

    Args:
        seed: of the orders.
        largest: how far a probability moves at most.
        changed: in how many of them another option wins.
        tried: "order" and "probabilities" of each.
    """

    seed: int
    largest: float
    changed: int
    tried: Sequence[Mapping[str, Any]]


@with_short_repr
@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one question; the fields of other types are None.

    Args:
        name: of the question.
        probabilities: by option; of yes or no "false" and "true", of a score its levels' numbers.
        noul: the probability of yes.
        choice: the most probable option.
        score: the expected level, counted from 0.
        confidence: of a choice and a score, 0 to 1.
        reason: where it was requested and there are two options.
        orders: where requested.
        truncated: what was cut, in tokens; None: nothing.
    """

    name: str
    type: Literal["noul", "choice", "score"]
    probabilities: Mapping[str, float]
    noul: float | None
    choice: str | None
    score: float | None
    confidence: float | None
    reason: Reason | None
    orders: Orders | None
    truncated: Mapping[str, int] | None

    def plot(self) -> Picture:
        """Draw the words that the decision rests on, coloured by their shares.

        Raises:
            ValueError: the answer has no reason, or too many words.
            ImportError: matplotlib is missing.
        """
        if (reason := self.reason) is None:
            raise ValueError(f'{self.name} has no reason, as of reason={{"method": "alone"}}')
        title = f"{self.name}: {reason.first} over {reason.second} by {reason.margin:.2f}"
        lines = [
            (
                " ".join(filter(None, (part.part, part.name))),
                [(u.text, u.share) for u in part.units],
            )
            for part in reason.parts
        ]
        return draw_words(title, lines)


@with_short_repr
@dataclass(frozen=True, slots=True)
class Decisions(Mapping[str, Decision]):
    """The answers about one state; `decisions["tone"]` is a Decision.

    Args:
        weights: digest; equal ones and equal input mean equal bits. None: it was not said.
        answers: by the questions' names, in their order.
        tokens: how many were computed.
    """

    model: str
    weights: str | None
    answers: Mapping[str, Decision]
    tokens: int

    def __getitem__(self, name: str) -> Decision:
        return self.answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)


@expect_format()
def read_decisions(answer: Any, weights: str | None) -> Decisions:
    """Read the JSON answer of POST /v1/systemone.

    Args:
        weights: digest, which is in a header.

    Raises:
        NoAnswer: it is not in that format.
    """
    answers = {name: _read_decision(name, one) for name, one in answer["answers"].items()}
    return Decisions(answer["model"], weights, answers, answer["usage"]["input_tokens"])


def _read_decision(name: str, answer: Mapping[str, Any]) -> Decision:
    """Read the answer to one question."""
    kind = answer["type"]
    noul = answer["noul"] if kind == "noul" else None
    reason, orders = answer.get("reason"), answer.get("orders")
    return Decision(
        name,
        kind,
        {**answer["probabilities"]} if noul is None else {"false": 1 - noul, "true": noul},
        noul=noul,
        choice=answer["choice"] if kind == "choice" else None,
        score=answer["score"] if kind == "score" else None,
        confidence=answer["confidence"] if noul is None else None,
        reason=None if reason is None else _read_reason(reason),
        orders=None if orders is None else Orders(**orders),
        truncated=answer.get("truncated"),
    )


def _read_reason(answer: Mapping[str, Any]) -> Reason:
    """Read what one decision rests on."""
    parts = [
        ReasonPart(
            part["part"],
            part.get("name"),
            part["share"],
            [Share(u["text"], to_pair(u["characters"]), u["share"]) for u in part["units"]],
        )
        for part in answer["parts"]
    ]
    told = {name: answer[name] for name in ("method", "level", "first", "second", "margin")}
    control = answer.get("control")
    return Reason(
        **told,
        parts=parts,
        special=answer.get("special"),
        rest=answer.get("rest"),
        control=None if control is None else LeftOut(**control),
    )


def _by_share(unit: Share) -> float:
    return -unit.share
