"""Run the service's command line as on a machine with more cores: each replica needs one.

python -m tests.many_cores serve ...
"""

from service.tables import cores

CORES = 6


def main() -> None:
    """Count more cores, then serve."""
    cores.count_cores = lambda: CORES
    from service import cli

    cli.main()


if __name__ == "__main__":
    main()
