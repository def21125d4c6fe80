"""The options of the command line: one per setting, and those that several commands share."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from pydantic.fields import FieldInfo

from service.commands.terminal import Unusable
from service.tables import keys
from service.tables.settings import Settings

# Types of options that name a file
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
CONFIG = click.option(
    "--config",
    type=EXISTING_FILE,
    help="YAML file of settings; flags and HEADLIGHT_* variables override it",
)
DEFAULT_URL = "http://127.0.0.1:8000"  # of a service with default settings
URL = click.option("--url", default=DEFAULT_URL, show_default=True, help="the service")
KEY_FILE = click.option(
    "--key-file",
    type=FILE,
    help="file with an API key; from the service's own key file, the first key is used",
)
JSON = click.option("--json", "as_json", is_flag=True, help="print JSON, for programs")
FORMAT = click.option(
    "--format",
    type=click.Choice(["jsonl", "txt", "csv", "tsv", "parquet"]),
    help="format of a file of texts  [default: by its extension, or jsonl]",
)
COLUMN = click.option(
    "--column",
    help="column of csv, tsv or parquet: its name, or its number from 1 where a first row of names "
    "is missing",
)
TRUNCATE = click.option(
    "--truncate",
    type=click.Choice(["refuse", "right", "left"]),
    help="what to do with over-long texts in a file: refuse, or cut on this side  "
    "[default: refuse]",
)
# Titles of the sections of --help by the first setting of each, in the order of the settings
SECTION_TITLES = {
    "model": "The model",
    "host": "Where it listens",
    "replicas": "Replicas and what they run on",
    "address": "Ray",
    "deadline_seconds": "Time",
    "api_keys_file": "Who may ask",
    "max_body_bytes": "Limits of a request",
    "log_format": "Logs and traces",
    "batch_tokens": "Queues",
}
# The settings that --help lists; --help-all lists all
COMMON = frozenset(
    (
        *("model", "adapter", "served_model_name", "truncate", "host", "port", "replicas"),
        *("threads", "device", "dtype", "api_keys_file"),
    )
)
# What --help shows for the value of a setting, by its type
TYPE_WORDS = {str: "TEXT", int: "N", float: "NUMBER", Path: "FILE", tuple: "TEXT,..."}
FULL_WIDTH = 200  # characters of a summary in --help: more than any has, so that none is cut
# Values after a boolean flag, as in `--access-log false`, besides its two forms without a value
ON_WORDS, OFF_WORDS = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


def print_all_help(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """Print the help with every setting, and exit; the callback of --help-all."""
    if wanted:
        ctx.meta[HELP_ALL.name] = True
        click.echo(ctx.get_help())
        ctx.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_all_help,
    help="list all settings and exit",
)


class SectionedCommand(click.Command):
    """A click command whose options are the settings, listed by --help in sections."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the options with --help and --help-all, which come last."""
        return [*super().get_params(ctx), HELP_ALL]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace `--flag false` and `--flag=false` by `--no-flag`, then parse as click does."""
        return super().parse_args(ctx, list(_replace_switches(args)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into --help by SECTION_TITLES, those that are no settings last."""
        settings, others = dict[str, list[tuple[str, str]]](), list[tuple[str, str]]()
        title = ""
        for parameter in self.get_params(ctx):
            record = isinstance(parameter, click.Option) and parameter.get_help_record(ctx)
            if not record:
                continue
            if (field := Settings.model_fields.get(parameter.name or "")) is None:
                others.append(record)
                continue
            title = SECTION_TITLES.get(parameter.name, title)
            if parameter.name in COMMON or HELP_ALL.name in ctx.meta:
                flags, text = record
                # what is off needs no way to turn it off
                flags = flags if field.default else flags.partition(" / ")[0]
                settings.setdefault(title, []).append((flags, text))
        for title, records in {**settings, "This command": others}.items():
            with formatter.section(title):
                formatter.write_dl(records)


class GroupedCommands(click.Group):
    """A click group whose commands --help lists in titled sections."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sections: dict[str, list[click.Command]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands to the group, listed by --help below this title."""
        self.sections[title] = list(commands)
        for command in commands:
            self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and their summaries into --help, section by section."""
        listed = chain.from_iterable(self.sections.values())
        longest = max(len(command.name or "") for command in listed)
        for title, commands in self.sections.items():
            rows = [
                (str(command.name).ljust(longest), command.get_short_help_str(FULL_WIDTH))
                for command in commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def _replace_switches(args: list[str]) -> Iterator[str]:
    """Yield the arguments, a boolean flag that has a value as `--flag` or `--no-flag`."""
    rest = iter([*args, ""])
    argument = next(rest)
    for following in rest:
        name, equal, value = argument.partition("=")
        if name not in SWITCHES:
            yield argument
        elif (word := (value if equal else following).lower()) in ON_WORDS | OFF_WORDS:
            yield name if word in ON_WORDS else f"--no-{name.removeprefix('--')}"
            if not equal:
                following = next(rest, "")
        else:
            yield argument
        argument = following


def _setting_type(field: FieldInfo) -> Any:
    """Return the type of a setting's values, without their bounds and without None."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    whole = field.annotation if get_origin(field.annotation) in (Literal, tuple) else None
    kind = whole or (kinds[0] if kinds else field.annotation)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


SWITCHES = {  # flags of the boolean settings
    "--" + name.replace("_", "-")
    for name, field in Settings.model_fields.items()
    if _setting_type(field) is bool
}


def setting_option(
    name: str, field: FieldInfo
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds a setting's option to a command; load_settings checks it."""
    kind, flag = _setting_type(field), "--" + name.replace("_", "-")
    if kind is bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        default = "  [default: on]" if field.default else ""
        return click.option(both, name, default=None, help=f"{field.description}{default}")
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    default = "" if field.default in (None, ()) else f"  [default: {field.default}]"
    listed = get_origin(kind) is tuple
    return click.option(
        flag,
        name,
        multiple=listed,  # a repeated flag is the same as commas
        callback=(lambda context, parameter, values: ",".join(values) or None) if listed else None,
        metavar="|".join(choices) or TYPE_WORDS.get(get_origin(kind) or kind, "TEXT"),
        help=f"{field.description}{default}",
        shell_complete=lambda context, parameter, typed: [
            CompletionItem(value) for value in choices if value.startswith(typed)
        ],
    )


def add_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each setting to a command, in their order, and the argument MODEL."""
    for name, field in reversed(Settings.model_fields.items()):
        if not field.exclude:  # never on a command line, which other users can read
            command = setting_option(name, field)(command)
    return click.argument(
        "model_arguments",
        metavar="[MODEL]...",
        nargs=-1,
        callback=lambda context, parameter, given: given or None,
    )(command)


def read_key(file: Path | None) -> str | None:
    """Return the first API key that a file holds; None without a file.

    Raises:
        Unusable: it holds no key; the message names the file.
    """
    if file is None:
        return None
    try:
        return keys.first_key(file.read_text("utf-8"))
    except UnicodeDecodeError as error:
        line = f"{file} is not UTF-8 text: a key file holds `key` or `name:key`"
        raise Unusable(line) from error
    except ValueError as error:
        raise Unusable(f"{file}: {error}") from error
