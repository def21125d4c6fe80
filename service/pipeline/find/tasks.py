"""Finds the task heads of the checkpoint that a request asks for, or refuses it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from model.config import Side
from model.loading.checkpoint import Model
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
from service.engine.fair.turns import in_turns
from service.pipeline.write.task_answers import Classes, SparseWeights, TokenVectors, best_labels
from service.shapes.outputs import (
    Classify,
    Entailment,
    LabelTokens,
    MultiVector,
    Rerank,
    Sparse,
    Wanted,
)
from service.shapes.side import Placer
from service.shapes.task import Arrays, Task
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import quote_names

# Details of refusals
NO_TOKEN_KEPT = "it keeps no token: all of them are in the checkpoint's skiplist"
FIRST_NOT_KEPT = "it keeps no token: the first one of a sequence has no vector"
QUERIES_LOOKED_UP = (
    "this checkpoint looks queries up in a table, which is not read; expected a document"
)
LEXICAL_QUERIES = "this model's sparse weights are those of tokens; expected a text or token ids"


async def check_task(task: Task, works: Sequence[Work], at: Placer, *, filled: bool) -> None:
    """Refuse inputs that a task cannot be applied to.

    Args:
        at: returns where an input stands in the request.
        filled: whether each must have a token with a vector, if the head gives token vectors.
    """
    async for index, work in in_turns(enumerate(works)):
        if task.words and work.facts["words"] is None:
            detail = '"level": "word" needs a text, and this input is not one'
            raise Refused.at("words_unknown", *at(index), detail=detail)
        fitted = task.fitted(work) if filled else None
        if isinstance(fitted, VectorHead) and not fitted.count_vectors(len(work)):
            detail = FIRST_NOT_KEPT if fitted.first_place else NO_TOKEN_KEPT
            raise Refused.at("nothing_left", *at(index), detail=detail)
        if task.no_ids_detail and work.sequence.token_ids is None:
            raise Refused.at("shape_mismatch", *at(index), detail=task.no_ids_detail)
        if task.no_ids_detail and not len(work):
            raise Refused.at("nothing_left", *at(index), detail="it holds no token")


def find_tasks(requested: Sequence[Wanted], model: Model) -> list[Task]:
    """Return the tasks of a model's heads that a request names.

    Raises:
        Refused: the checkpoint has no head for one of them.
    """
    for wanted in requested:
        if wanted.name not in model.tasks:
            has = f"this model has {quote_names(list(model.tasks), 'and')}"
            detail = f'"{wanted.name}" was requested, and {has}'
            raise Refused("task_not_found", detail=detail, tasks=list(model.tasks))
    return [
        _make_task(wanted, head, model.tokenizer)
        for wanted in requested
        for head in model.task_heads
        if wanted.name in head.tasks
    ]


def _make_task(wanted: Wanted, head: TaskHead, tokenizer: Tokenizer) -> Task:
    """Return a task with a head that can do it, with the request's options."""
    match wanted, head:
        case Classify(activation=activation), Classifier():
            return _classes_task(head, head.activation if activation == "default" else activation)
        case Entailment(), Classifier():
            return _classes_task(head, "none")
        case Rerank(), Classifier():
            return _classes_task(head, head.ranking)
        case LabelTokens(level=level), Tagger():
            return Task(
                head,
                lambda work, made: best_labels(head.labels, work.facts, made, level),
                words=level == "word",
                shows=True,
            )
        case Sparse(k=k, threshold=threshold), Splade():
            splade = replace(head, k=k, threshold=threshold)
            return Task(splade, partial(_show_weights, tokenizer))
        case Sparse(k=k, threshold=threshold), Lexical():
            lexical = replace(head, k=k, threshold=threshold)
            return Task(
                lexical,
                partial(_show_weights, tokenizer),
                fit=lambda work: replace(lexical, token_ids=work.sequence.token_ids or ()),
                no_ids_detail=LEXICAL_QUERIES,
            )
        case MultiVector(), VectorHead():
            return Task(
                head,
                lambda _, made: TokenVectors(made["vectors"], made["kept"]),
                fit=partial(_fit_vectors, head),
                shows=True,
            )
    raise RuntimeError("a task without a head: this is a bug")


def choose_role(requested: Sequence[Wanted], side: Side | None, model: Model) -> Role | None:
    """Return how inputs are read as query or document; None if the model reads both alike.

    Raises:
        Refused: the checkpoint does not encode that side.
    """
    is_sparse = any(isinstance(wanted, Sparse) for wanted in requested)
    for head in model.task_heads:
        if isinstance(head, VectorHead) and side:
            return head.roles[side]
        if isinstance(head, Splade) and is_sparse:
            if side and side not in head.roles:
                raise Refused.at("out_of_range", "sparse", "role", detail=QUERIES_LOOKED_UP)
            # a request without a side is read as a document with the checkpoint's default prompt
            return head.roles[side] if side else replace(head.roles["document"], prompt=None)
    return None


def _fit_vectors(head: VectorHead, work: Work) -> VectorHead:
    """Return a head with the positions of a work's tokens that its role does not skip."""
    role, ids = work.role, work.sequence.token_ids
    if role is None or ids is None:
        return head
    kept = [position for position in role.kept_places(ids) if position >= head.first_place]
    return replace(head, kept=kept)


def _classes_task(head: Classifier, activation: ScoreActivation) -> Task:
    """Return the task of scoring a sequence's classes by an activation."""
    scored = replace(head, activation=activation)
    return Task(scored, lambda _, made: Classes(head.labels, made["logits"], made["scores"]))


def _show_weights(tokenizer: Tokenizer, work: Work, arrays: Arrays) -> SparseWeights:
    """Return a head's sparse vector with the tokens of its ids."""
    tokens = tokenizer.tokens_of(arrays["indices"].tolist())
    return SparseWeights(arrays["indices"], arrays["values"], tokens)
