"""Run the service's command line where a process may have few descriptors.

python -m tests.few_descriptors serve ...
"""

import resource

MOST = 1000


def main() -> None:
    """Lower the limit for good, then serve."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
    from service import cli

    cli.main()


if __name__ == "__main__":
    main()
