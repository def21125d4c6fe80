"""Asks an advisory service about every package of the locks; `make audit`.

Where the service cannot be reached, that is said in one line and is no failure: a machine without
network has nothing to find. Once it answers, only a right answer about each package passes.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import httpx

SERVICE = "https://api.osv.dev/v1/query"  # OSV's: all advisories of Python's packages
ANSWER_SECONDS = 15.0
AT_ONCE = 8  # questions
KNOWN = "jinja2", "2.4.1"  # has advisories since 2019: who says that it has none knows nothing
UNREACHED = (httpx.NetworkError, httpx.TimeoutException, httpx.ProxyError)
PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([^\s;\\=]+)")
OTHER = re.compile(r"\s*(#|--|$)")  # a comment, an option such as --hash, nothing


class Wrong(Exception):
    """The service answered, but not as it should; its text is one line."""


def ask(client: httpx.Client, service: str, package: str, version: str) -> list[str]:
    """Return the numbers of the advisories that hold for a version of a package.

    Raises:
        Wrong: an answer of another form or status, or one that goes on on another page.
        httpx.TransportError: no answer.
    """
    question = {"package": {"name": package, "ecosystem": "PyPI"}, "version": version}
    answer = client.post(service, json=question)
    if answer.status_code != 200:
        raise Wrong(f"status {answer.status_code} for {package} {version}")
    try:
        found = answer.json()
        if not isinstance(found, dict) or found.keys() - {"vulns"}:
            raise ValueError
        return [each["id"] for each in found.get("vulns", []) if not each.get("withdrawn")]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise Wrong(f"no list of advisories for {package} {version}") from error


def first(client: httpx.Client, service: str) -> str | None:
    """Ask about a package whose advisories are known: why nothing answers, or None.

    Raises:
        Wrong: what answers does not know them, or is no such service.
    """
    try:
        known = ask(client, service, *KNOWN)
    except httpx.TransportError as error:
        if isinstance(error, UNREACHED) and "[SSL" not in str(error):
            return (str(error) or type(error).__name__).splitlines()[0]
        raise Wrong(str(error)) from error
    if not known:
        raise Wrong(f"no advisory for {' '.join(KNOWN)}, which has some")
    return None


def locked(lock: str) -> set[tuple[str, str]]:
    """Return the packages of a lock with their versions.

    Raises:
        click.ClickException: a line is neither a pin nor known to be none, or there is no pin.
    """
    found = set[tuple[str, str]]()
    for line in Path(lock).read_text("utf-8-sig").splitlines():
        if pin := PIN.match(line):
            found.add((pin[1].lower(), pin[2]))
        elif not OTHER.match(line):
            raise click.ClickException(f"{lock}: no pin is read in {line!r}")
    if not found:
        raise click.ClickException(f"{lock} pins no package")
    return found


@click.command()
@click.option("--service", default=SERVICE, show_default=True, help="an OSV API")
@click.argument("locks", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
def main(service: str, locks: tuple[str, ...]) -> None:
    """Exit with 1 where an advisory of a locked package is known, or an answer is wrong."""
    packages = sorted({each for lock in locks for each in locked(lock)})
    try:
        with httpx.Client(timeout=ANSWER_SECONDS) as client, ThreadPoolExecutor(AT_ONCE) as pool:
            if reason := first(client, service):
                click.echo(f"audit: no package was checked, {service} cannot be asked: {reason}")
                return
            answers = list(pool.map(lambda each: ask(client, service, *each), packages))
    except (Wrong, httpx.TransportError) as error:
        why = str(error) or type(error).__name__
        raise click.ClickException(f"{service} did not answer as it should: {why}") from error
    found = [(each, numbers) for each, numbers in zip(packages, answers, strict=True) if numbers]
    for (package, version), numbers in found:
        click.echo(f"{package} {version}: {', '.join(numbers)}")
    click.echo(f"audit: {len(packages)} packages checked, {len(found)} with known advisories")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
