"""The command line: `headlight serve`, with one option per setting.

Progress goes to stderr, the address to stdout. A refusal is one line, with exit status 2 for
what the caller can mend in the command and 1 for a start that failed.

ray is imported only once the service starts, so that --help is quick.
"""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

import click
from pydantic import ValidationError

from service import launch
from service.cluster.progress import StartFailed
from service.commands.ending import FAILED, INTERRUPTED, USAGE, refuse, tell
from service.commands.options import CONFIG, KEY_FILE, PRESENT, URL, of_settings, read_key
from service.commands.texts import encode, heads
from service.keys.ring import Ring
from service.settings import Settings, fault
from service.settings import load as settle

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group()
@click.version_option(package_name="headlight", message="%(package)s %(version)s")
def main() -> None:
    """Serve a transformer encoder and show what its attention heads look at."""


main.add_command(encode)
main.add_command(heads)


@main.command()
@of_settings
@CONFIG
@click.option("--example", is_flag=True, help="once ready, send one request and print the answer")
def serve(config: Path | None, example: bool, **flags: str | None) -> None:
    """Start the service and run it until Ctrl-C."""
    settings = load(flags, config)
    try:
        with ExitStack() as stack:
            out, err = stack.enter_context(terminal(1)), stack.enter_context(terminal(2))
            stopped = stack.enter_context(signals())
            address = stack.enter_context(launch.running(settings, lambda line: tell(err, line)))
            tell(out, greeting(settings, address))
            if example and settings.keyed:
                tell(err, "no example is sent: this service asks for an API key")
            elif example:
                from service.commands import encode

                tell(out, encode.example(address))
            while not stopped.wait(1):
                launch.check()
    except KeyboardInterrupt:
        return
    except launch.CannotListen as error:
        refuse(str(error), USAGE)
    except (StartFailed, launch.Lost, OSError) as error:
        refuse(str(error), FAILED)


@main.command()
@of_settings
@CONFIG
def doctor(config: Path | None, **flags: str | None) -> None:
    """Check that `headlight serve` could start with the same options; start nothing.

    The exit status is 1 if it could not.
    """
    from service.commands.doctor import findings

    failed = False
    for finding in findings(load(flags, config)):
        tell(sys.stdout, str(finding))
        failed |= finding.grade == "FAIL"
    if failed:
        raise SystemExit(FAILED)


@main.command()
@URL
@click.option("--interval", type=click.FloatRange(0.5, 60), default=2.0, help="seconds; default 2")
@KEY_FILE
@click.option("--once", is_flag=True, help="show one interval and exit")
def top(url: str, interval: float, key_file: Path | None, once: bool) -> None:
    """Show live figures of a running service until Ctrl-C."""
    from rich.console import Console

    from service.commands import encode
    from service.commands import top as view

    try:
        show = view.once if once else view.watch
        show(url, read_key(key_file), interval, Console())
    except KeyboardInterrupt:
        return
    except ValueError as error:
        refuse(str(error), USAGE)
    except (encode.Unreachable, OSError) as error:
        refuse(str(error), FAILED)


@main.command()
@click.argument("model", metavar="FOLDER|HUB_ID")
@click.argument("out", type=click.Path(path_type=Path))
def convert(model: str, out: Path) -> None:
    """Make OUT, a folder of safetensors, of a model whose weights are pickles.

    Each pickle is read in a process of its own that may do little else, and what is written is
    compared with it bit by bit. OUT must not exist, or be empty.
    """
    from service.commands.convert import convert as conversion

    try:
        with ended_as_interrupted():
            conversion.convert(model, out, lambda line: tell(sys.stderr, line))
    except KeyboardInterrupt:
        refuse("stopped; nothing was made", INTERRUPTED)
    except (conversion.CannotConvert, OSError) as error:
        refuse(str(error), FAILED)
    tell(sys.stdout, f"headlight: {out} is made; headlight serve --model {shlex.quote(str(out))}")


@main.group()
def config() -> None:
    """Look at a cluster's configuration."""


@config.command("check")
@click.argument("files", nargs=-1, required=True, type=PRESENT)
def check_files(files: tuple[Path, ...]) -> None:
    """Check Serve files, RayServices and env files of a cluster; send nothing.

    Each mistake is a line, FILE:LINE: key: what is wrong. The exit status is 2 if there is one.
    Serve files are held against the variables of the env files among FILES.
    """
    from service.deployment.check import check

    try:
        findings, right = check(files)
    except OSError as error:
        refuse(str(error), USAGE)
    for line in [*findings, *right]:
        tell(sys.stdout, str(line))
    if any(not finding.note for finding in findings):
        raise SystemExit(USAGE)


@main.command()
@click.argument("file", type=PRESENT)
@click.option(
    "--address", default="http://127.0.0.1:8265", show_default=True, help="Ray's dashboard"
)
@click.option(
    "--wait", type=click.FloatRange(0.1, 3600), default=300.0, help="seconds; default 300"
)
def deploy(file: Path, address: str, wait: float) -> None:
    """Check a Serve FILE, send it to a running cluster, and say what became of it.

    The exit status is 2 if nothing was sent, and 1 if what was sent does not run.
    """
    from service.deployment import deploy as deployment
    from service.deployment.dashboard import Refused, Unreachable

    try:
        said = deployment.deploy(file, address, wait, lambda line: tell(sys.stderr, line))
    except deployment.Wrong as error:
        tell(sys.stderr, str(error))
        raise SystemExit(USAGE) from error
    except deployment.Interrupted as error:
        refuse(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        refuse("stopped; nothing was sent", INTERRUPTED)
    except (deployment.Failed, Refused, Unreachable, OSError) as error:
        refuse(str(error), FAILED)
    tell(sys.stdout, f"headlight: {said}")


def load(flags: dict[str, str | None], config: Path | None) -> Settings:
    """Settle the settings, or leave with a line that names the wrong one."""
    try:
        settings = settle(flags, file=config)
        Ring(settings.api_keys, settings.api_keys_file)
        return settings
    except ValidationError as error:
        refuse("; ".join(map(fault, error.errors())), USAGE)
    except (OSError, ValueError) as error:
        refuse(str(error), USAGE)


def terminal(descriptor: int) -> IO[str]:
    """Keep stdout or stderr for ourselves: while Ray runs, the process's own are a log file."""
    return os.fdopen(os.dup(descriptor), "w")


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Have every signal that ends a program be as Ctrl-C, so that nothing half made is left."""
    others = [number for number in SIGNALS if number != signal.SIGINT]
    before = {number: signal.signal(number, signal.default_int_handler) for number in others}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals() -> Iterator[threading.Event]:
    """Have the first signal stop the service with care, and the second at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            os._exit(128 + number)  # the sweeper ends the rest
        stopped.set()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def greeting(settings: Settings, address: str) -> str:
    """Say what is served, where, and where to look next."""
    few, most = settings.fewest, settings.most
    copies = f"{few} to {most} replicas" if few < most else f"{few} replica" + "s" * (few > 1)
    model = settings.served_model_name or settings.model
    return (
        f"Headlight serves {model} on {address} ({copies})\n"
        f"API: {address}/docs, metrics: {address}/metrics"
    )


if __name__ == "__main__":
    main()
