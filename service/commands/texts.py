"""`headlight encode` and `headlight heads`: the commands that ask a model about texts.

What they need is imported once they run, so that --help is quick.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from service.commands.ending import FAILED, INTERRUPTED, USAGE, refuse, tell
from service.commands.options import FILE, KEY_FILE, URL, read_key


@click.command()
@click.argument("text", required=False)
@click.option("--attention", metavar="L5H11", help="also show what this head attends to")
@click.option("--plot", type=FILE, help="with --attention: also draw that map, .png or .svg")
@click.option("--file", type=FILE, help="instead of TEXT: a file of texts; - reads stdin")
@click.option(
    "--format",
    type=click.Choice(["jsonl", "txt", "csv", "tsv"]),
    help="with --file: how it holds texts  [default: as its name ends, or jsonl]",
)
@click.option("--column", help="of csv and tsv: its name in the first row, or its number from 1")
@click.option("--out", type=FILE, help="with --file: what to write, .safetensors or .npy")
@click.option(
    "--truncate",
    type=click.Choice(["refuse", "right", "left"]),
    help="with --file: where long texts are cut  [default: refuse]",
)
@URL
@KEY_FILE
def encode(text: str | None, url: str, key_file: Path | None, **flags: Any) -> None:
    """Encode TEXT with a running service and print a table; or a whole file of texts.

    With --file and --out, an interrupted command goes on where it stopped when it is given again.
    """
    try:
        if text is not None:
            encode_text(url, read_key(key_file), text, **flags)
        else:
            encode_file(url, read_key(key_file), **flags)
    except ValueError as error:
        refuse(str(error), USAGE)
    except BrokenPipeError:
        raise  # whoever read our output has left: click ends in silence
    except OSError as error:
        refuse(str(error), FAILED)


def encode_text(
    url: str, key: str | None, text: str, attention: str | None, plot: Path | None, **flags: Any
) -> None:
    """Print the table of a text."""
    from rich.console import Console

    from service.commands import encode
    from service.commands.pictures.formats import CannotDraw

    if any(flags.values()):
        refuse("TEXT goes without --file and what goes with it", USAGE)
    if plot and not attention:
        refuse("--plot draws one head's map: name it by --attention, such as L0H5", USAGE)
    try:
        Console().print(encode.table(url, text, attention, key, plot))
    except CannotDraw as error:
        refuse(str(error), USAGE)
    except encode.Unreachable as error:
        refuse(str(error), FAILED)


def encode_file(
    url: str, key: str | None, file: Path | None, out: Path | None, **flags: Any
) -> None:
    """Write the vectors of a file's texts, showing how far it is."""
    from service.commands.bulk import job, lines

    if file is None or out is None or flags["attention"] or flags["plot"]:
        refuse("give a TEXT, or --file and --out without --attention and --plot", USAGE)
    texts = lines.File.of(file, flags["format"], flags["column"])
    with resumable():
        count = job.encode(url, key, texts, out, truncate=flags["truncate"] or "refuse")
    tell(sys.stdout, f"{count} vectors in {out}")


@contextmanager
def resumable() -> Iterator[None]:
    """Leave with a line where a job over a file ends early."""
    from service.commands.bulk.service import Stopped, Unusable

    try:
        yield
    except Unusable as error:
        refuse(str(error), USAGE)
    except Stopped as error:
        refuse(str(error), FAILED)
    except KeyboardInterrupt:
        refuse("stopped; the same command goes on from here", INTERRUPTED)


@click.command()
@click.option("--model", default="all-MiniLM-L6-v2", show_default=True, help="as for serve")
@click.option("--corpus", type=FILE, help="sentences as JSON lines; default: the bundled ones")
@click.option("--threshold", multiple=True, metavar="ROLE=NUMBER", help="a role's lowest score")
@click.option("--plot", type=FILE, help="also draw the grid to this .png or .svg")
@click.option("--json", "saved", type=FILE, help="also write the answer of GET /v1/heads")
@click.option("--ablate", metavar="TEXT", help="show only how far TEXT moves without each head")
def heads(model: str, ablate: str | None, **flags: Any) -> None:
    """Measure what each head of a model does, and print it."""
    from service.commands import heads

    try:
        if ablate is None:
            heads.measure(model, **flags)
        elif any(flags.values()):
            refuse("--ablate can be combined only with --model", USAGE)
        else:
            heads.ablate(model, ablate)
    except heads.Unusable as error:
        refuse(str(error), USAGE)
    except OSError as error:
        refuse(str(error), FAILED)
