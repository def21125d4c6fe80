"""The compiled operator, where there is one."""

from collections.abc import Callable

import pytest

from model.encoder import Encoder
from model.native import library
from model.native.stack import NativeStack


@pytest.fixture(scope="module")
def stacked() -> Callable[[Encoder], NativeStack]:
    """What gives an encoder to the operator; without a compiler there is none to be held."""
    try:
        operator = library.load_operator()
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")
    return lambda encoder: NativeStack(encoder, operator)
