"""The command line: `headlight serve`, with one option per setting, and the commands around it.

Progress goes to stderr, the address to stdout. A refusal is one line, with exit status 2 for
what the caller can mend in the command and 1 for a start that failed. With --json, stdout holds
JSON alone.

ray is imported only once the service starts, so that --help is quick.
"""

import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from service import VERSION
from service.cluster.model_settings import count_threads, load_models
from service.commands.options import (
    CONFIG,
    EXISTING_FILE,
    JSON,
    GroupedCommands,
    SectionedCommand,
    add_setting_options,
)
from service.commands.terminal import (
    FAILED,
    USAGE,
    end_in_one_line,
    exit_with,
    open_standard_streams,
    print_now,
)
from service.commands.texts import encode, heads, space
from service.observe import logs
from service.start import launch
from service.start.ray_session import check_ray
from service.tables import keyring
from service.tables.settings import Settings
from service.tables.wording.values import word_error

if TYPE_CHECKING:
    from service.preflight.finding import Finding

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # each ends a command


@click.group(cls=GroupedCommands)
@click.version_option(VERSION, message="headlight %(version)s")
def main() -> None:
    """Serve a transformer encoder and show what its attention heads look at."""
    open_standard_streams()


@click.command(cls=SectionedCommand)
@add_setting_options
@CONFIG
@click.option("--example", is_flag=True, help="once ready, send one request and print the answer")
@end_in_one_line()
def serve(config: Path | None, example: bool, **flags: Any) -> None:
    """Start the service and run it until Ctrl-C.

    MODEL is the same as --model MODEL. Of several, a request names one in its `model`; requests
    without a name go to the first.
    """
    models = models_from_flags(flags, config)
    settings = models[0]
    # All lines are the log's where they are collected, a start's too
    word = partial(logs.word_line, settings.log_format) if settings.log_to_stderr else str
    with suppress(KeyboardInterrupt), end_in_one_line(word=word), ExitStack() as stack:
        # our own: while Ray runs, the process's stdout and stderr are a log file
        out, err = (stack.enter_context(os.fdopen(os.dup(number), "w")) for number in (1, 2))
        stopped = stack.enter_context(stop_on_signals())
        write = partial(print_now, err)
        service = launch.run_service(models, lambda line: write(word(line)), write)
        address = stack.enter_context(service)
        print_now(out, greeting(models, address))
        if example and settings.needs_key:
            write(word("no example: this service needs an API key"))
        elif example and settings.tls_cert:
            write(word("no example: the certificate is for another name than this machine's"))
        elif example:
            from service.commands import encode

            print_now(out, encode.show_example(address))
        while not stopped.wait(1):
            check_ray()


@click.command(cls=SectionedCommand)
@add_setting_options
@CONFIG
@click.option(
    "--file",
    type=EXISTING_FILE,
    help="check this Serve file for `serve deploy` instead; send nothing",
)
@JSON
def doctor(config: Path | None, file: Path | None, as_json: bool, **flags: Any) -> None:
    """Check that `headlight serve` could start with the same options; start nothing.

    The exit status is that of the start: 2 where the port is taken, a certificate does not fit or
    an option is wrong, 1 where something else keeps it from starting, and 0 otherwise. With --file
    it is 2 where the file is wrong.
    """
    # ok: as it must be; note: it starts, and would be faster or safer otherwise; FAIL: it cannot
    if file is None:
        findings, options = examine_machine(models_from_flags(flags, config))
    elif config or any(value is not None for value in flags.values()):
        exit_with("--file is checked alone: leave the other options out", USAGE)
    else:
        findings, options = read_serve_file(file), None
    rows = [(f.grade, f.place or "settings", f.what, f.mend) for f in findings]
    if as_json:
        named = [dict(zip(("grade", "what", "fact", "remedy"), row, strict=True)) for row in rows]
        print_now(sys.stdout, json.dumps({"findings": named}))
    else:
        for grade, part, what, mend in rows:
            print_now(sys.stdout, f"{grade:4}  {part:14}  {': '.join(filter(None, (what, mend)))}")
    if wrong := {finding.place for finding in findings if finding.is_wrong}:
        raise SystemExit(USAGE if options is None or options & wrong else FAILED)


def examine_machine(models: Sequence[Settings]) -> tuple[list["Finding"], set[str]]:
    """Return the findings on this machine, and the places whose faults exit with status USAGE."""
    from service.preflight import machine
    from service.preflight.finding import Finding, run

    findings = list(run("doctor", machine.CHECKS, models[0]))
    if len(models) > 1 and models[0].device != "cuda":
        findings = [*machine.describe_sharing(count_threads(models)), *findings]
    if not findings[-1].is_wrong:  # of torch, without which nothing more can be checked
        from service.preflight import model

        for settings in models:
            for finding in run("doctor", machine.WITH_TORCH, settings):
                findings.append(replace(finding, place=finding.place or "device"))
        findings += model.examine_models(models)
        if not any(finding.is_wrong for finding in findings):
            findings.append(Finding("", "fit this machine", grade="ok"))
    return findings, machine.OPTIONS


def read_serve_file(file: Path) -> list["Finding"]:
    """Return the findings on a Serve file: its faults, or one that there is none."""
    from service.preflight import serve_file
    from service.preflight.finding import Finding

    try:
        findings = list(serve_file.find_dropped(file))
    except OSError as error:
        exit_with(word_error(error), USAGE)
    return findings or [Finding(str(file), "is as Ray's schema has it", grade="ok")]


@click.command()
@click.argument("model", metavar="FOLDER|HUB_ID")
@click.argument("out", type=click.Path(path_type=Path))
def convert(model: str, out: Path) -> None:
    """Convert a model into OUT: pickles to safetensors, a vocabulary to tokenizer.json.

    The latter takes transformers (pip install 'headlight-serve[convert]'). Each pickle is read in a
    process of its own, and the result is compared with it bit by bit. OUT must not exist, or must
    be empty. Convert what you do not trust in a container without network.
    """
    from service.commands import convert as conversion

    # every signal is as Ctrl-C, so that nothing half made is left
    with (
        end_in_one_line("stopped; nothing was written"),
        handle_signals(signal.default_int_handler),
    ):
        conversion.convert_folder(model, out, lambda line: print_now(sys.stderr, line))
    print_now(
        sys.stdout, f"headlight: {out} is ready; headlight serve --model {shlex.quote(str(out))}"
    )


main.add_section("Serve", serve, doctor)
main.add_section("Ask a model about texts", encode, heads, space)
main.add_section("Prepare a model", convert)


def models_from_flags(flags: dict[str, Any], config: Path | None) -> list[Settings]:
    """Load the settings of each model, or exit with a line on the wrong one."""
    model_arguments = flags.pop("model_arguments") or ()
    if model_arguments and flags["model"] is not None:
        line = f"the model is given twice: {model_arguments[0]} and --model {flags['model']}"
        exit_with(line, USAGE)
    try:
        models = load_models(model_arguments, flags, file=config)
        keyring.check_keys(models[0].api_keys, models[0].api_keys_file)
        return models
    except (OSError, ValueError) as error:
        exit_with(word_error(error), USAGE)


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle every signal of SIGNALS, which end a program, while the block runs.

    A hangup that is ignored stays so: by nohup.
    """
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = {number: signal.signal(number, handler) for number in set(SIGNALS) - ignored}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets, to stop gracefully; the second exits at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        """Set the event and interrupt the main thread; the second time, exit at once."""
        if stopped.is_set():
            os._exit(128 + number)  # the sweeper ends the rest
        stopped.set()
        raise KeyboardInterrupt

    with handle_signals(stop):
        yield stopped


def greeting(models: Sequence[Settings], address: str) -> str:
    """Return the lines that `headlight serve` prints once ready: models, address and pages."""
    settings, copies = models[0], [count_copies(model) for model in models]
    names = [model.served_model_name or model.model for model in models]
    each = ", ".join(f"{name} ({count})" for name, count in zip(names, copies, strict=True))
    served = f"{each} on {address}" if models[1:] else f"{names[0]} on {address} ({copies[0]})"
    long_texts = {
        None: "refused (cut on routes of TEI, Cohere and rerankers); change with --truncate",
        "refuse": "refused",
    }.get(settings.truncate, f"cut on the {settings.truncate}")
    return (
        f"Headlight serves {served}\n"
        f"API: {address}/docs, metrics: {address}/metrics\n"
        f"over-long texts, unless a request says otherwise: {long_texts}"
    )


def count_copies(settings: Settings) -> str:
    """Say how many replicas a model has."""
    few, most = settings.fewest_replicas, settings.most_replicas
    return f"{few} to {most} replicas" if few < most else f"{few} replica" + "s" * (few > 1)


if __name__ == "__main__":
    main()
