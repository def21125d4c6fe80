"""The command line: `headlight serve`, with one option per setting.

Progress goes to stderr, the address to stdout. A refusal is one line, with exit status 2 for
what the caller can mend in the command and 1 for a start that failed.

ray is imported only once the service starts, so that --help is quick.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Literal, NoReturn, get_args, get_origin
from urllib.request import Request, urlopen

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from service import launch, settings
from service.settings import Settings

FAILED, USAGE = 1, 2
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group()
def main() -> None:
    """Serve a transformer encoder and show what its attention heads look at."""


def option(name: str, field: FieldInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make the option of one setting; settings.load does the checking, for all sources alike."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    kind = kinds[0] if kinds and not choices else field.annotation
    default = "" if field.default is None else f"  [default: {field.default}]"
    return click.option(
        "--" + name.replace("_", "-"),
        name,
        metavar="|".join(choices) or getattr(kind, "__name__", "text").upper(),
        help=f"{field.description}{default}",
    )


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per setting, in the order of the settings."""
    for name, field in reversed(Settings.model_fields.items()):
        command = option(name, field)(command)
    return command


@main.command()
@options
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of settings; flags and HEADLIGHT_* variables win over it",
)
@click.option("--example", is_flag=True, help="once ready, send one request and show its answer")
def serve(config: Path | None, example: bool, **flags: str | None) -> None:
    """Serve until Ctrl-C."""
    chosen = settled(flags, config)
    # Copies: while Ray runs, the process's own stdout and stderr are a log file.
    out, err = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(2), "w")
    stopped = threading.Event()
    for number in STOPPING:
        signal.signal(number, stopper(stopped))
    try:
        with launch.running(chosen, lambda line: tell(err, line)) as address:
            tell(out, greeting(chosen, address))
            if example:
                tell(out, shown(address))
            if example:
                from service import show

                tell(out, show.example(address))
            while not stopped.wait(1):
                launch.check()
    except KeyboardInterrupt:
        return
    except launch.CannotListen as error:
        refuse(str(error), USAGE)
    except (launch.StartFailed, launch.Lost, OSError) as error:
        refuse(str(error), FAILED)


@main.command()
@click.argument("text")
@click.option("--attention", metavar="L5H11", help="also show what this head attends to")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="the service")
def encode(text: str, attention: str | None, url: str) -> None:
    """Encode TEXT with a running service and print a table."""
    from rich.console import Console

    from service import show

    try:
        Console().print(show.table(url, text, attention))
    except ValueError as error:
        refuse(str(error), USAGE)
    except show.Unreachable as error:
        refuse(str(error), FAILED)


def settled(flags: dict[str, str | None], config: Path | None) -> Settings:
    """Settle the settings, or leave with a line that names the wrong one."""
    try:
        return settings.load(flags, file=config)
    except ValidationError as error:
        refuse("; ".join(map(fault, error.errors())), USAGE)
    except (OSError, ValueError) as error:
        refuse(str(error), USAGE)


def fault(error: ErrorDetails) -> str:
    """Say in a line what is wrong with one setting."""
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{name}: no such setting"
    return f"{name}: {error['msg']}, not {error['input']!r}"


def stopper(stopped: threading.Event) -> Callable[[int, FrameType | None], None]:
    """Make the signal handler: the first signal stops with care, the second at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            os._exit(128 + number)  # the sweeper ends the rest
        stopped.set()
        raise KeyboardInterrupt

    return stop


def greeting(chosen: Settings, address: str) -> str:
    """Say what is served, where."""
    copies = f"{chosen.replicas} replica" + ("s" if chosen.replicas > 1 else "")
    return f"Headlight serves {chosen.served_model_name or chosen.model} on {address} ({copies})"


def shown(address: str) -> str:
    """Send a request; return it as a curl command, and what came back, cut short."""
    url, body = f"{address}/v1/encode", json.dumps({"inputs": ["All is well"]})
    request = Request(url, body.encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        encoding = json.load(answer)["data"][0]["pooled"]
    start = ", ".join(f"{number:.4f}" for number in encoding[:4])
    return (
        f"$ curl {url} -H 'Content-Type: application/json' -d '{body}'\n"
        f"{len(encoding)} numbers: {start}, ..."
    )


def tell(stream: IO[str], line: str) -> None:
    """Print a line now."""
    print(line, file=stream, flush=True)


def refuse(line: str, status: int) -> NoReturn:
    """Leave with one line on stderr."""
    tell(sys.stderr, f"headlight: {' '.join(line.split())}")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
