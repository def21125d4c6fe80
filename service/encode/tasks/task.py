"""A request -> what is wanted of the checkpoint's head, or a refusal."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from model.loading.checkpoint import Model
from model.task_heads import Classifier, Splade, Tagger, TaskHead, Vectors
from model.text.role import Role
from model.text.tokenizer import Tokenizer
from service.api.native.request import EncodeRequest, Side
from service.api.native.tasks import Classify, LabelTokens, Sparse
from service.api.questions.matching import Matching
from service.encode.inputs import ModelInput
from service.encode.tasks import shown
from service.encode.tasks.shown import Classes, Shown, TokenVectors, Weights
from service.engine.work import Array
from service.refusals import Refused
from service.wording.words import quoted

Arrays = Mapping[str, Array]

SKIPPED = "it keeps no token: all of them are in the checkpoint's skiplist"
LOOKED = "this model looks queries up by their tokens; expected a text or token ids"


@dataclass(frozen=True, slots=True)
class Task:
    """What is wanted of the head.

    Args:
        head: as the request wants it.
        show: what it made of a sequence, and facts of that one's tokens -> as it is answered.
        words: whether it takes words.
        fit: the head for one input, where it depends on its tokens.
        filled: whether each input must have a token that is kept.
        looked: whether what it makes is looked up by a text's tokens.
    """

    head: TaskHead
    show: Callable[[Mapping[str, Any], Arrays], Shown]
    words: bool = False
    fit: Callable[[ModelInput], Vectors | Splade] | None = None
    filled: bool = False
    looked: bool = False

    def check(self, inputs: Sequence[ModelInput]) -> None:
        """Refuse inputs that do not have what it takes."""
        for index, source in enumerate(inputs):
            if self.words and source.facts["words"] is None:
                detail = '"level": "word" needs a text, and this input is not one'
                raise Refused.at("words_unknown", "inputs", index, detail=detail)
            fitted = self.fit(source) if self.filled and self.fit else None
            if isinstance(fitted, Vectors) and fitted.kept == []:
                raise Refused.at("nothing_left", "inputs", index, detail=SKIPPED)
            if self.looked and source.sequence.token_ids is None:
                raise Refused.at("shape_mismatch", "inputs", index, detail=LOOKED)
            if self.looked and not len(source.sequence):
                raise Refused.at("nothing_left", "inputs", index, detail="it holds no token")


def find(request: EncodeRequest, model: Model) -> Task | None:
    """What a request asks of a model's head; None where it asks nothing.

    Raises:
        Refused: the checkpoint has no head for it.
    """
    if not request.tasks:
        return None
    for task in request.tasks:
        if task not in model.tasks:
            has = f"this model has {quoted(list(model.tasks), 'and')}"
            detail = f'"{task}" was requested, and {has}'
            raise Refused("task_not_found", detail=detail, tasks=list(model.tasks))
    match model.task_head:
        case Classifier() as head:
            ranked = "rerank" in request.tasks
            head = replace(head, activation=head.ranking) if ranked else head
            return _classify(head, request.classify)
        case Tagger() as head:
            how = request.label_tokens
            level = how.level if isinstance(how, LabelTokens) else "token"
            show = partial(shown.labels, head.labels, level=level)
            return Task(head, show, words=level == "word")
        case Splade() as head:
            return _sparse(head, request.sparse, model.tokenizer)
        case Vectors() as head:
            return _vectors(head, request)
    raise RuntimeError("a task without a head: this is a bug")


def role(request: EncodeRequest, side: Side, model: Model) -> Role | None:
    """How the inputs of one side are read; None where both sides are read alike."""
    head = model.task_head
    if isinstance(head, Vectors) and side.role:
        return head.roles[side.role]
    if not isinstance(head, Splade) or request.sparse is False:
        return None
    # without a name the checkpoint's default prompt goes before a text, on whichever side
    return head.roles[side.role] if side.role else replace(head.roles[head.default], prompt=None)


def _vectors(head: Vectors, request: EncodeRequest) -> Task:
    def show(facts: Mapping[str, Any], arrays: Arrays) -> TokenVectors:
        return TokenVectors(arrays["vectors"], arrays["kept"])

    def fit(source: ModelInput) -> Vectors:
        side, ids = source.role, source.sequence.token_ids
        return head if side is None or ids is None else replace(head, kept=side.kept(ids))

    return Task(head, show, fit=fit, filled=isinstance(request, Matching))


def _classify(head: Classifier, how: bool | Classify) -> Task:
    def show(facts: Mapping[str, Any], arrays: Arrays) -> Classes:
        return Classes(head.labels, arrays["logits"], arrays["scores"])

    if isinstance(how, Classify) and how.activation != "default":
        head = replace(head, activation=how.activation)
    return Task(head, show)


def _sparse(head: Splade, how: bool | Sparse, tokenizer: Tokenizer) -> Task:
    def show(facts: Mapping[str, Any], arrays: Arrays) -> Weights:
        tokens = [tokenizer.token(index) for index in arrays["indices"].tolist()]
        return Weights(arrays["indices"], arrays["values"], tokens)

    def fit(source: ModelInput) -> Splade:
        return replace(head, looked=source.sequence.token_ids)

    side = head.default
    if isinstance(how, Sparse):
        head, side = replace(head, k=how.k, threshold=how.threshold), how.role or side
    looked = head.table is not None and side == "query"
    return Task(head, show, fit=fit if looked else None, looked=looked)
