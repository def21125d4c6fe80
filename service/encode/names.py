"""The names of a model, its adapters and its tasks: `model` and `model:adapter` in requests."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from service.refusals import Refused
from service.wording.words import quote_names, suggest_name

NO_ADAPTERS = "this model has no adapters"
SPARSE_ONLY = "this model makes sparse vectors: ask POST /embed_sparse, or /v1/encode for any other"


class Names(NamedTuple):
    """What clients may call a served model.

    Args:
        model: without an adapter.
        adapters: what may follow it behind a colon.
    """

    model: str
    adapters: Sequence[str] = ()

    @property
    def every(self) -> list[str]:
        """Return all names, the model's own first."""
        return [self.model, *(f"{self.model}:{adapter}" for adapter in self.adapters)]

    def adapter(self, named: str | None, task: str | None = None) -> str | None:
        """Return the adapter that a request asks for.

        Args:
            named: the model as the request has it; None: its own name.
            task: the adapter's own name.

        Raises:
            Refused: there is none of either name, or they are of two.
        """
        own = self._adapter_of(named)
        if task is None:
            return own
        if task not in self.adapters:
            has = (
                f"this model has {quote_names(self.adapters, 'and')}"
                if self.adapters
                else NO_ADAPTERS
            )
            raise Refused.at(
                "out_of_range", "task", detail=f"{has}{suggest_name(task, self.adapters)}"
            )
        if own not in (None, task):
            raise Refused.at("out_of_range", "task", detail=f'"model" names another, "{own}"')
        return task

    def _adapter_of(self, named: str | None) -> str | None:
        """Return the adapter that a model's name or None, for the model's own, stands for.

        Raises:
            Refused: it is none of `every`.
        """
        if named is None:
            return None
        every = self.every
        return (None, *self.adapters)[every.index(find_name(named, every))]


def find_name(named: str, every: Sequence[str]) -> str:
    """Return which of these names a client means.

    Case does not count, nor `:latest`, nor the organisation of a hub where one of both lacks it.
    Names are compared whole, since a model's may have a colon.

    Raises:
        Refused: it is none of them, or may be several.
    """
    alike = [named] if named in every else [name for name in every if _is_same_name(named, name)]
    if len(alike) != 1:
        detail = f"not found; this service has {quote_names(every, 'and')}"
        raise Refused.at("model_not_found", "model", detail=detail)
    return alike[0]


def _is_same_name(named: str, name: str) -> bool:
    plain = (each.lower().removesuffix(":latest") for each in (named, name))
    short, long = sorted(plain, key=len)
    return short == long or ("/" not in short and long.partition("/")[1:] == ("/", short))


def only_sparse(tasks: Collection[str]) -> bool:
    """Tell whether a model with these tasks was made for sparse vectors, and not for dense ones."""
    return {*tasks} == {"encode", "sparse"}
