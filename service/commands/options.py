"""The options of the command line: one per setting, and those that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from pydantic.fields import FieldInfo

from model.maps.choices import FIELDS
from service.keys import key as keys
from service.settings import Settings

FILE = click.Path(dir_okay=False, path_type=Path)
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)
CONFIG = click.option(
    "--config",
    type=PRESENT,
    help="YAML file of settings; flags and HEADLIGHT_* variables override it",
)
HERE = "http://127.0.0.1:8000"
URL = click.option("--url", default=HERE, show_default=True, help="the service")
KEY_FILE = click.option(
    "--key-file",
    type=FILE,
    help="file with an API key; from the service's own key file, the first key is used",
)
FORMAT = click.option(
    "--format",
    type=click.Choice(["jsonl", "txt", "csv", "tsv"]),
    help="how a file holds texts  [default: as its name ends, or jsonl]",
)
COLUMN = click.option(
    "--column", help="of csv and tsv: its name in the first row, or its number from 1"
)
TRUNCATE = click.option(
    "--truncate",
    type=click.Choice(["refuse", "right", "left"]),
    help="where long texts of a file are cut  [default: refuse]",
)
RANKING = (
    click.option("--head", metavar="L5H11", help="rank the texts of --corpus by this head"),
    click.option("--statistic", type=click.Choice(FIELDS), help="with --head: by what of it"),
    click.option("--lowest", is_flag=True, help="the smallest values, not the largest"),
    click.option("--top", type=click.IntRange(1, 1000), help="how many texts  [default: 50]"),
    FORMAT,
    COLUMN,
    TRUNCATE,
    click.option("--url", help=f"with --head: the service  [default: {HERE}]"),
    KEY_FILE,
)


def of_ranking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a ranking, each None or False where it is left out."""
    for add in reversed(RANKING):
        command = add(command)
    return command


def option(name: str, field: FieldInfo) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make the option of one setting; settings.load checks, for all sources alike."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    choices = kinds if get_origin(field.annotation) is Literal else ()
    kind = kinds[0] if kinds else field.annotation
    values = ("true", "false") if kind is bool else choices
    default = "" if field.default is None else f"  [default: {field.default}]"
    return click.option(
        "--" + name.replace("_", "-"),
        name,
        metavar="|".join(choices) or getattr(kind, "__name__", "text").upper(),
        help=f"{field.description}{default}",
        shell_complete=lambda context, parameter, typed: [
            CompletionItem(value) for value in values if value.startswith(typed)
        ],
    )


def of_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per setting, in the order of the settings."""
    for name, field in reversed(Settings.model_fields.items()):
        if not field.exclude:  # never on a command line, which others can read
            command = option(name, field)(command)
    return command


def read_key(file: Path | None) -> str | None:
    """Read the API key of a file.

    Raises:
        ValueError: it holds none; the message names the file.
    """
    if file is None:
        return None
    try:
        return keys.first(file.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not UTF-8 text: a key file holds `key` or `name:key`"
        ) from error
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removeprefix('api_keys: ')}") from error
