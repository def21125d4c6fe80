"""The forward pass without the interpreter: model/encoder.py's loop as one compiled operator.

setup.py reads the name of the operator's file from here, and needs no torch for it.
"""

import re

MODULE_PREFIX = "forward_"  # of the operator's file, before the release of torch
BUILDS = re.compile(r"\+(cpu|cu\d+)$")  # of one release; an operator of one runs with the others


def operator_module(release: str) -> str:
    """Return the module name of the operator built for a release of torch, whichever build it is.

    Example:
        >>> operator_module("2.13.0+cpu")
        'forward_2_13_0'
        >>> operator_module("2.14.0a0+git1a2b3c")
        'forward_2_14_0a0_git1a2b3c'
    """
    return MODULE_PREFIX + re.sub(r"\W", "_", BUILDS.sub("", release))
