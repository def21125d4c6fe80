"""Loading of the compiled operator, if it was built for this torch.

It calls torch's own C++ interface, which changes with every release; so its file carries the
release that it was built for in its name, and no other torch ever opens it.
"""

import pkgutil
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any

import torch

from model import native
from model.native import MODULE_PREFIX, operator_module


class OperatorMissing(Exception):
    """The operator is not built for this torch, or cannot be loaded; the message says which."""


def load_operator(folders: Sequence[str] = tuple(native.__path__)) -> Any:
    """Load the operator, and return its class, torch.classes.headlight.Stack.

    Args:
        folders: where its file is looked for.

    Raises:
        OperatorMissing: it cannot be loaded; the message says why.
    """
    release = str(torch.__version__)
    spec = PathFinder.find_spec(operator_module(release), folders)
    if spec is None or spec.origin is None:
        others = [
            name for _, name, _ in pkgutil.iter_modules(folders) if name.startswith(MODULE_PREFIX)
        ]
        built = f"{', '.join(sorted(others))} alone is built" if others else "it is not built"
        raise OperatorMissing(f"{built}, and torch is {release}")
    try:
        torch.classes.load_library(spec.origin)
        return torch.classes.headlight.Stack
    except (OSError, RuntimeError) as error:
        raise OperatorMissing(f"torch cannot load {operator_module(release)}") from error
