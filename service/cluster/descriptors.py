"""How many files and connections this process may have open."""

import resource


def raise_limit() -> None:
    """Take as many as the system allows: a shell's usual 1,024 are fewer than the connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
