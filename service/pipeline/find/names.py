"""The names of a model, its adapters and its tasks: `model` and `model:adapter` in requests."""

from collections.abc import Collection, Sequence

from service.tables.refusals import Refused
from service.tables.wording.words import quote_names, suggest_name

# Details of refusals
NO_ADAPTERS = "this model has no adapters"
SPARSE_ONLY = "this model makes sparse vectors: ask POST /embed_sparse, or /v1/encode for any other"
RANKS = "this model ranks texts: ask POST /rerank or /v1/rerank, or /v1/encode for its vectors"
ONE_A_TOKEN = (
    "this model makes a vector for each token: ask POST /v1/maxsim for scores, or /v1/encode for"
    " its vectors"
)


class Names:
    """The names by which clients may call a served model.

    Args:
        model: without an adapter.
        adapters: which may follow it after a colon.

    Attributes:
        every: all names, the model's own first.
    """

    def __init__(self, model: str, adapters: Sequence[str] = ()) -> None:
        self.model, self.adapters = model, adapters
        self.every = [model, *(f"{model}:{adapter}" for adapter in adapters)]

    def adapter(self, model: str | None, task: str | None = None) -> str | None:
        """Return the name of the adapter that a request asks for; None: without one.

        Args:
            model: the request's `model`, which may name an adapter; None: it names no model.
            task: the request's `task`, which is an adapter's name.

        Raises:
            Refused: there is no such model or adapter, or `model` and `task` name two.
        """
        own = None
        if model is not None:
            own = (None, *self.adapters)[self.every.index(find_name(model, self.every))]
        if task is None:
            return own
        if task not in self.adapters:
            known = NO_ADAPTERS
            if self.adapters:
                known = f"this model has {quote_names(self.adapters, 'and')}"
            detail = f"{known}{suggest_name(task, self.adapters)}"
            raise Refused.at("out_of_range", "task", detail=detail)
        if own not in (None, task):
            raise Refused.at("out_of_range", "task", detail=f'"model" names another, "{own}"')
        return task


def find_name(requested: str, names: Sequence[str], place: str = "model") -> str:
    """Return which of `names` a client means by the name in its request.

    Case is ignored, and so is `:latest`, and the hub's organisation if one of both lacks it. Names
    are compared as a whole, since the name of a model may have a colon.

    Args:
        place: where in the request it stands.

    Raises:
        Refused: it matches none of them, or several.
    """
    if requested in names:
        return requested
    matches = [name for name in names if is_same_name(requested, name)]
    if len(matches) != 1:
        raise unknown_model(names, place)
    return matches[0]


def unknown_model(names: Sequence[str], place: str | int = "model") -> Refused:
    """Return the refusal of a name, at a place of the request, that matches not one of these."""
    detail = f"not found; this service has {quote_names(names, 'and')}"
    return Refused.at("model_not_found", place, detail=detail)


def is_same_name(left: str, right: str) -> bool:
    """Tell whether two names are the same but for what `find_name` ignores."""
    plain = (name.lower().removesuffix(":latest") for name in (left, right))
    short, long = sorted(plain, key=len)
    return short == long or ("/" not in short and long.partition("/")[1:] == ("/", short))


def why_not_dense(tasks: Collection[str]) -> str | None:
    """Return why a model with these tasks has no dense vector of a text; None: it has one."""
    if only_sparse(tasks):
        return SPARSE_ONLY
    if "rerank" in tasks:
        return RANKS
    # BGE-M3, which makes sparse ones too, makes all three kinds
    return ONE_A_TOKEN if "multi_vector" in tasks and "sparse" not in tasks else None


def only_sparse(tasks: Collection[str]) -> bool:
    """Tell whether a model with these tasks makes sparse vectors only, and no dense ones."""
    return {*tasks} == {"encode", "sparse"}
