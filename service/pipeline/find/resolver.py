"""Finds what a request names in the model, or refuses it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from model.decider import Decider
from model.loading.checkpoint import Model
from model.pooling import Pooling
from model.similarity import LinearPooling, NotLinear
from model.text.question import Window
from model.text.tokenizer import Truncation
from service.pipeline.find.heads import Heads, chosen_heads, chosen_hidden_states
from service.pipeline.find.names import Names
from service.pipeline.find.tasks import choose_role, find_tasks
from service.shapes.inputs import Attention, Sweep
from service.shapes.outputs import Pooled
from service.shapes.work import Outputs
from service.tables.refusals import Refused
from service.tables.settings import Settings


class Resolver:
    """Resolves what requests name, for one model under one service's settings.

    Args:
        name: name by which clients call the model.

    Attributes:
        adapter: returns the name of the adapter that a request asks for; see Names.adapter.
        tasks: returns the tasks that a request names of the checkpoint's heads; see find_tasks.
        role: returns how texts are read as query or as document; see choose_role.
        most_sequences, most_tokens: most inputs of a request, and most tokens.
        most_json: most bytes of a request's JSON, and most characters in all its pairs together.
        linear: the checkpoint's own pooling as a weighted sum of tokens, or why it is no such sum.
        linear_inputs: the same of tokens that enter the model, where one vector may be the whole.
    """

    def __init__(self, name: str, model: Model, settings: Settings) -> None:
        self.names, self.model = Names(name, [*model.adapters]), model
        self.adapter = self.names.adapter
        self.tasks = partial(find_tasks, model=model)
        self.role = partial(choose_role, model=model)
        self.most_sequences, self.most_tokens = settings.max_sequences, settings.max_request_tokens
        self.most_json = settings.max_body_bytes
        self._truncate, self._own = settings.truncate, Outputs(model.pooling)
        self._settings = settings
        self.linear = linear_pooling(model.pooling)
        self.linear_inputs = linear_pooling(model.pooling, single=True)

    def cut(self, truncate: Truncation | None, usual: Truncation = "refuse") -> Truncation:
        """Return how a sequence that is too long is truncated, or that it is refused.

        Args:
            truncate: what the request says.
            usual: the default where neither the request nor the service's settings say.
        """
        return truncate or self._truncate or usual

    def outputs(
        self, pooled: bool | Pooled, tokens: bool = False, layers: Sequence[int] = ()
    ) -> Outputs:
        """Return what lanes compute of each sequence.

        Args:
            pooled: whether, or how, to pool each sequence to one vector.
            tokens: whether to return the token vectors.
            layers: hidden states to return, as the request numbers them.

        Raises:
            Refused: the model has no such hidden state, or its vectors have fewer numbers.
        """
        limit, pooling = self.model.config.layers, self.pooling(pooled)
        if not (tokens or layers):
            return self._own if pooling is self._own.pooling else Outputs(pooling)
        try:
            hidden = chosen_hidden_states(layers, limit)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", "layers", detail=detail, limit=limit) from None
        return Outputs(pooling, tokens, hidden)

    def pooling(self, pooled: bool | Pooled) -> Pooling | None:
        """Return how to pool a sequence to one vector; None: not at all.

        Raises:
            Refused: the model's vectors have fewer numbers.
        """
        own = self.model.pooling
        if isinstance(pooled, bool):
            return own if pooled else None
        if (normalize := pooled.normalized) is None:
            normalize = own.normalize
        # the checkpoint's Dense layers are made for its own reduction and for no other
        pooling = own if pooled.mode == "model" else Pooling((pooled.mode,), normalize)
        dimensions = pooled.dimensions or pooling.dimensions
        if pooled.dimensions:
            size = pooling.uncut_size(self.model.config.width)
            if pooled.dimensions > size:
                detail = f"expected at most {size}, the size of this model's vectors"
                at = "pooled", "dimensions"
                raise Refused.at("out_of_range", *at, detail=detail, limit=size)
        if (normalize, dimensions) == (pooling.normalize, pooling.dimensions):
            return pooling
        return replace(pooling, normalize=normalize, dimensions=dimensions)

    def heads(self, chosen: Attention | Sweep, field: str) -> Heads:
        """Return the heads that a request chooses, by layer.

        Args:
            field: name of the request's field, for a refusal.

        Raises:
            Refused: the model has no such head.
        """
        limits = {"layers": self.model.config.layers, "heads": self.model.config.heads}
        try:
            return chosen_heads(chosen, **limits)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", field, detail=detail, **limits) from None

    def window(self, head: Decider) -> Window:
        """Return the room for a question and a state: the settings' or the checkpoint's."""
        sequence, question = head.window
        settings = self._settings
        return Window(settings.max_tokens or sequence, settings.max_question_tokens or question)

    def check_tokens(self, tokens: int, holds: str = "it holds") -> None:
        """Refuse more tokens than a request may have; `holds` begins the message."""
        limit = self.most_tokens
        if tokens > limit:
            detail = f"{holds} {tokens:,} tokens, and the limit is {limit:,}"
            raise Refused("too_many_tokens", detail=detail, tokens=tokens, limit=limit)


def linear_pooling(pooling: Pooling, *, single: bool = False) -> LinearPooling | NotLinear:
    """Return a pooling as a weighted sum of tokens, or why it is no such sum."""
    try:
        return LinearPooling(pooling, single=single)
    except NotLinear as error:
        return error
