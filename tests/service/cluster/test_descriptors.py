"""Descriptors: a process takes all that it may have."""

import subprocess
import sys

SCRIPT = """
import resource
from service.cluster import network
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 997))
network.raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_process_raises_its_limit_to_what_it_may_have() -> None:
    """In a process of its own, since a limit cannot be put back."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)

    assert ran.stdout == b"997 997\n"
