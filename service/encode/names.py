"""The names of a model and of its adapters, as requests give them: `model` and `model:adapter`."""

from collections.abc import Sequence
from typing import NamedTuple

from service.refusals import Refused
from service.wording.words import meant, quoted

NONE = "this model has no adapters"


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
        own = self._named(named)
        if task is None:
            return own
        if task not in self.adapters:
            has = f"this model has {quoted(self.adapters, 'and')}" if self.adapters else NONE
            raise Refused.at("out_of_range", "task", detail=f"{has}{meant(task, self.adapters)}")
        if own not in (None, task):
            raise Refused.at("out_of_range", "task", detail=f'"model" names another, "{own}"')
        return task

    def _named(self, named: str | None) -> str | None:
        """Return the adapter that a model's name or None, for the model's own, stands for.

        Raises:
            Refused: it is none of `every`; compared whole, since a model's name may have a colon.
        """
        if named in (None, self.model):
            return None
        for name, adapter in zip(self.every[1:], self.adapters, strict=True):
            if named == name:
                return adapter
        raise Refused.at("model_not_found", "model", detail=self.told)

    @property
    def told(self) -> str:
        """Say in a sentence what is served."""
        return "this service serves " + ", ".join(f'"{name}"' for name in self.every)
