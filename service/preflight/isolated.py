"""Checks of `headlight serve` that need torch, in a process that ends: the command holds no torch.

python -P -m service.preflight.isolated      reads the models' settings, writes a fault, or notes
"""

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from service.cluster.haproxy import die_with_parent
from service.cluster.start_report import StartFailed, naming_failures
from service.files import weights
from service.preflight.finding import require, run
from service.preflight.machine import WITH_TORCH
from service.tables.settings import Settings


@contextmanager
def checking(
    models: Mapping[str, Settings], say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Check in another process whether our own replicas could serve these models.

    Args:
        models: by the names that a failure is to mention.
        say: prints a line: what would be faster.

    Yields:
        A function that waits for the result and raises StartFailed if they could not.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is ours to answer
    )

    def require_servable() -> None:
        """Wait for the result; raises StartFailed, which says why they could not."""
        said, _ = process.communicate()
        if process.returncode:
            reason = f"the check of the model ended with {process.returncode}"
            raise StartFailed(said.decode() or reason)
        for line in said.decode().splitlines():
            say(line)

    with process:
        try:
            with suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
                pickle.dump(models, pipe)
            process.stdin = None  # nothing is left for communicate to close
            yield require_servable
        finally:
            process.kill()


def check_here(models: Mapping[str, Settings]) -> list[str]:
    """Check in this process what `checking` does in another; return what would be faster.

    Raises:
        StartFailed: replicas would find no model, none that fits, or no memory for all.
    """
    # slow to import, as torch is
    from service.preflight.model import CHECKS, TOGETHER, measure_speed

    found, notes = [], list[str]()
    for name, settings in models.items():
        with naming_failures(name):
            require(run("serve", WITH_TORCH, settings))
            try:
                source = weights.locate_model(settings.model, settings.adapter)
            except weights.ModelNotFound as error:
                raise StartFailed(str(error)) from error
            require(run("serve", CHECKS, settings, source))
            speeds = measure_speed(settings, source)
            notes += [str(finding) for finding in speeds if finding.grade == "note"]
        found.append((settings, source))
    require(run("serve", TOGETHER, *found))
    return notes


def main() -> None:
    """Read settings, and write why they cannot be served, or what would be faster."""
    die_with_parent()
    try:
        sys.stdout.write("\n".join(check_here(pickle.load(sys.stdin.buffer))))
    except StartFailed as error:
        sys.stdout.write(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
