"""What the compiled operator's file is called; setup.py reads it too, and needs no torch for it."""

import re

PREFIX = "forward_"


def module(release: str) -> str:
    """The name of what is built for a release of torch.

    Example:
        >>> module("2.13.0+cpu")
        'forward_2_13_0_cpu'
    """
    return PREFIX + re.sub(r"\W", "_", release)
