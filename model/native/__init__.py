"""The forward pass without the interpreter: model/encoder.py's loop as one compiled operator.

setup.py reads the name of the operator's file from here, and needs no torch for it.
"""

import re

MODULE_PREFIX = "forward_"  # of the operator's file, before the release of torch


def operator_module(release: str) -> str:
    """Return the module name of the operator built for a release of torch.

    Example:
        >>> operator_module("2.13.0+cpu")
        'forward_2_13_0_cpu'
    """
    return MODULE_PREFIX + re.sub(r"\W", "_", release)
