"""A request -> what is wanted of the checkpoint's own task heads, or a refusal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from model.config import Side
from model.loading.checkpoint import Model
from model.maps.choices import Level
from model.task_heads import (
    Classifier,
    Lexical,
    ScoreActivation,
    Splade,
    Tagger,
    TaskHead,
    VectorHead,
)
from model.text.frame import Role
from model.text.tokenizer import Tokenizer
from service.core import Placer
from service.encode import shown
from service.encode.shown import Classes, Labels, Shown, SparseWeights, TokenVectors
from service.engine.work import Array, Work
from service.outputs import (
    Classify,
    Entailment,
    LabelTokens,
    MultiVector,
    Rerank,
    Sparse,
    Wanted,
)
from service.refusals import Refused
from service.wording.words import quote_names

Arrays = Mapping[str, Array]

NO_TOKEN_KEPT = "it keeps no token: all of them are in the checkpoint's skiplist"
FIRST_NOT_KEPT = "it keeps no token: the first one of a sequence has no vector"
QUERIES_LOOKED_UP = (
    "this checkpoint looks queries up in a table, which is not read; expected a document"
)
LEXICAL_QUERIES = "this model's sparse weights are those of tokens; expected a text or token ids"


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a request names: its head, and how its output is answered.

    Args:
        head: as the request wants it.
        show: a sequence, and what it made of that one -> as it is answered.
        words: whether it takes words.
        fit: the head for one input, where it depends on its tokens.
        named: what is wrong with an input without token ids, where it takes them; "": nothing.
        shows: whether the answer shows the tokens.
    """

    head: TaskHead
    show: Callable[[Work, Arrays], Shown]
    words: bool = False
    fit: Callable[[Work], TaskHead] | None = None
    named: str = ""
    shows: bool = False

    def fitted(self, source: Work) -> TaskHead:
        """Return the head for one input."""
        return self.fit(source) if self.fit else self.head

    def check(self, inputs: Sequence[Work], at: Placer, *, filled: bool) -> None:
        """Refuse inputs that do not have what it takes.

        Args:
            filled: whether each must have a token that is kept.
        """
        for index, source in enumerate(inputs):
            if self.words and source.facts["words"] is None:
                detail = '"level": "word" needs a text, and this input is not one'
                raise Refused.at("words_unknown", *at(index), detail=detail)
            fitted = self.fitted(source) if filled else None
            if isinstance(fitted, VectorHead) and not fitted.count_vectors(len(source)):
                detail = FIRST_NOT_KEPT if fitted.first_place else NO_TOKEN_KEPT
                raise Refused.at("nothing_left", *at(index), detail=detail)
            if self.named and source.sequence.token_ids is None:
                raise Refused.at("shape_mismatch", *at(index), detail=self.named)
            if self.named and not len(source):
                raise Refused.at("nothing_left", *at(index), detail="it holds no token")


def find_tasks(asked: Sequence[Wanted], model: Model) -> list[Task]:
    """Return what is asked of a model's task heads.

    Raises:
        Refused: the checkpoint has no head for one.
    """
    for wanted in asked:
        if wanted.name not in model.tasks:
            has = f"this model has {quote_names(list(model.tasks), 'and')}"
            detail = f'"{wanted.name}" was requested, and {has}'
            raise Refused("task_not_found", detail=detail, tasks=list(model.tasks))
    return [
        _make_task(wanted, head, model.tokenizer)
        for wanted in asked
        for head in model.task_heads
        if wanted.name in head.tasks
    ]


def _make_task(wanted: Wanted, head: TaskHead, tokenizer: Tokenizer) -> Task:
    """Return what is wanted of a head that can do it."""
    match wanted, head:
        case Classify(activation=activation), Classifier():
            return _classes_task(head, head.activation if activation == "default" else activation)
        case Entailment(), Classifier():
            return _classes_task(head, "none")
        case Rerank(), Classifier():
            return _classes_task(head, head.ranking)
        case LabelTokens(level=level), Tagger():
            return _labels_task(head, level)
        case Sparse(k=k, threshold=threshold), Splade():
            return _splade_task(replace(head, k=k, threshold=threshold), tokenizer)
        case Sparse(k=k, threshold=threshold), Lexical():
            return _lexical_task(replace(head, k=k, threshold=threshold), tokenizer)
        case MultiVector(), VectorHead():
            return _vectors_task(head)
    raise RuntimeError("a task without a head: this is a bug")


def choose_role(asked: Sequence[Wanted], side: Side | None, model: Model) -> Role | None:
    """Return how inputs of one side are read; None where both sides are read alike.

    Raises:
        Refused: the checkpoint does not read that side.
    """
    sparse = any(isinstance(one, Sparse) for one in asked)
    for head in model.task_heads:
        if isinstance(head, VectorHead) and side:
            return head.roles[side]
        if isinstance(head, Splade) and sparse:
            if side and side not in head.roles:
                raise Refused.at("out_of_range", "sparse", "role", detail=QUERIES_LOOKED_UP)
            # without a name the checkpoint's default prompt goes before a text, on either side
            return head.roles[side] if side else replace(head.roles["document"], prompt=None)
    return None


def _vectors_task(head: VectorHead) -> Task:
    def show(source: Work, arrays: Arrays) -> TokenVectors:
        return TokenVectors(arrays["vectors"], arrays["kept"])

    def fit(source: Work) -> VectorHead:
        side, ids = source.role, source.sequence.token_ids
        if side is None or ids is None:
            return head
        return replace(
            head, kept=[place for place in side.kept_places(ids) if place >= head.first_place]
        )

    return Task(head, show, fit=fit, shows=True)


def _labels_task(head: Tagger, level: Level) -> Task:
    def show(source: Work, arrays: Arrays) -> Labels:
        return shown.best_labels(head.labels, source.facts, arrays, level)

    return Task(head, show, words=level == "word", shows=True)


def _classes_task(head: Classifier, activation: ScoreActivation) -> Task:
    def show(source: Work, arrays: Arrays) -> Classes:
        return Classes(head.labels, arrays["logits"], arrays["scores"])

    return Task(replace(head, activation=activation), show)


def _splade_task(head: Splade, tokenizer: Tokenizer) -> Task:
    return Task(head, partial(_show_weights, tokenizer))


def _lexical_task(head: Lexical, tokenizer: Tokenizer) -> Task:
    def fit(source: Work) -> Lexical:
        return replace(head, token_ids=source.sequence.token_ids or ())

    return Task(head, partial(_show_weights, tokenizer), fit=fit, named=LEXICAL_QUERIES)


def _show_weights(tokenizer: Tokenizer, source: Work, arrays: Arrays) -> SparseWeights:
    tokens = [tokenizer.token_of(index) for index in arrays["indices"].tolist()]
    return SparseWeights(arrays["indices"], arrays["values"], tokens)
