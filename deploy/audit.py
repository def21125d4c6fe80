"""Asks an advisory service about every package of the locks; `make audit`.

pip-audit asks. Where the service cannot be asked, that is said in one line and is no failure: a
machine without network has nothing to find, and a green line would say that nothing is known.
"""

import subprocess
import sys
from pathlib import Path

import click
import httpx

SERVICE = "https://api.osv.dev/v1/query"  # OSV's: all advisories of Python's packages
ANSWER_SECONDS = 15.0
QUESTION = {"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "26.3"}


def unreachable(service: str) -> str | None:
    """Ask once: why the service cannot be asked, or None."""
    try:
        httpx.post(service, json=QUESTION, timeout=ANSWER_SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    return None


@click.command()
@click.option("--service", default=SERVICE, show_default=True, help="an OSV API")
@click.argument("locks", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def main(service: str, locks: tuple[str, ...]) -> None:
    """Exit with 1 where a vulnerability of a locked package is known, or asking fails half-way."""
    if reason := unreachable(service):
        click.echo(f"audit: no package was checked, {service} cannot be asked: {reason}")
        return
    program = Path(sys.executable).with_name("pip-audit")
    options = ["--strict", "--require-hashes", "--disable-pip", "--progress-spinner=off"]
    options += ["--vulnerability-service=osv", f"--osv-url={service}"]
    options += [f"--requirement={lock}" for lock in locks]
    sys.exit(subprocess.run([program, *options]).returncode)


if __name__ == "__main__":
    main()
