"""What a request names -> what this model has of it, or a refusal."""

from collections.abc import Sequence
from dataclasses import replace

from model.config import Side
from model.loading.checkpoint import Model
from model.pooling import Pooling
from model.similarity import LinearPooling, NotLinear
from model.text.frame import Role
from model.text.tokenizer import Truncation
from service.encode import tasks
from service.encode.indices import Heads, chosen_heads, chosen_hidden_states
from service.encode.names import Names
from service.encode.tasks import Task
from service.engine.work import Outputs
from service.inputs import Attention, Sweep
from service.outputs import Pooled, Wanted
from service.refusals import Refused
from service.settings import Settings


class Resolver:
    """Resolves what requests name, for one model under one service's settings.

    Args:
        name: what clients call it.

    Attributes:
        most_sequences: of a request; most_json: bytes of its JSON.
        linear: the checkpoint's own pooling as a sum over tokens, or why it is none.
    """

    def __init__(self, name: str, model: Model, settings: Settings) -> None:
        self.names, self.model = Names(name, [*model.adapters]), model
        self.most_sequences, self._most_tokens = settings.max_sequences, settings.max_request_tokens
        self.most_json = settings.max_body_bytes
        self._truncate, self._own = settings.truncate, Outputs(model.pooling)
        self.linear: LinearPooling | NotLinear
        try:
            self.linear = LinearPooling(model.pooling)
        except NotLinear as error:
            self.linear = error

    def adapter(self, named: str | None, task: str | None = None) -> str | None:
        """Return the adapter that a request asks for; raises as Names.adapter."""
        return self.names.adapter(named, task)

    def cut(self, truncate: Truncation | None, usual: Truncation = "refuse") -> Truncation:
        """Return what happens to a sequence that is too long.

        Args:
            usual: where neither the request nor the service says.
        """
        return truncate or self._truncate or usual

    def outputs(
        self, pooled: bool | Pooled, tokens: bool = False, layers: Sequence[int] = ()
    ) -> Outputs:
        """Return what the lanes return of each sequence.

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
        """Return how one vector is made of a sequence; None where there is none.

        Raises:
            Refused: the model's vectors have fewer numbers.
        """
        own = self.model.pooling
        if isinstance(pooled, bool):
            return own if pooled else None
        normalize = own.normalize if pooled.normalized is None else pooled.normalized
        # the checkpoint's Dense layers are made for its own reduction and for no other
        pooling = own if pooled.mode == "model" else Pooling((pooled.mode,), normalize)
        size = pooling.uncut_size(self.model.config.width)
        if pooled.dimensions is not None and pooled.dimensions > size:
            detail = f"expected at most {size}, the size of this model's vectors"
            raise Refused.at("out_of_range", "pooled", "dimensions", detail=detail, limit=size)
        dimensions = pooled.dimensions or pooling.dimensions
        if (normalize, dimensions) == (pooling.normalize, pooling.dimensions):
            return pooling
        return replace(pooling, normalize=normalize, dimensions=dimensions)

    def heads(self, asked: Attention | Sweep, field: str) -> Heads:
        """Return the heads that a field of a request names.

        Raises:
            Refused: the model has no such head.
        """
        limits = {"layers": self.model.config.layers, "heads": self.model.config.heads}
        try:
            return chosen_heads(asked, **limits)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", field, detail=detail, **limits) from None

    def tasks(self, wanted: Sequence[Wanted]) -> Sequence[Task]:
        """Return what is wanted of the checkpoint's heads; raises as tasks.find."""
        return tasks.find_tasks(wanted, self.model) if wanted else ()

    def role(self, wanted: Sequence[Wanted], side: Side | None) -> Role | None:
        """Return how texts of one side are read; raises as tasks.role."""
        return tasks.choose_role(wanted, side, self.model) if side or wanted else None

    def check_tokens(self, tokens: int, holds: str = "it holds") -> None:
        """Refuse more tokens than a request may hold."""
        limit = self._most_tokens
        if tokens > limit:
            detail = f"{holds} {tokens:,}, and the limit is {limit:,}"
            raise Refused("too_many_tokens", detail=detail, tokens=tokens, limit=limit)
