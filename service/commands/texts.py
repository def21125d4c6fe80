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
from service.commands.options import (
    COLUMN,
    FILE,
    FORMAT,
    HERE,
    KEY_FILE,
    TRUNCATE,
    URL,
    of_ranking,
    read_key,
)
from service.settings import Settings

BUNDLED = Settings.model_fields["model"].default


@click.command()
@click.argument("text", required=False)
@click.option("--attention", metavar="L5H11", help="also show what this head attends to")
@click.option("--plot", type=FILE, help="with --attention: also draw that map, .png or .svg")
@click.option("--file", type=FILE, help="instead of TEXT: a file of texts; - reads stdin")
@FORMAT
@COLUMN
@click.option(
    "--export",
    type=click.Choice(["bertviz", "arrays"]),
    help="write all maps of TEXT: a page of BertViz's views, or arrays for BertViz and CircuitsVis",
)
@click.option(
    "--out",
    type=FILE,
    help="what to write: with --file .safetensors or .npy, with --export .html or .npz",
)
@TRUNCATE
@URL
@KEY_FILE
def encode(text: str | None, url: str, key_file: Path | None, **flags: Any) -> None:
    """Encode TEXT with a running service and print a table; or a whole file of texts.

    With --file and --out, an interrupted command goes on where it stopped when it is given again.
    """
    try:
        if text is not None and flags["export"]:
            export_text(url, read_key(key_file), text, **flags)
        elif text is not None:
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
        refuse("TEXT goes without --file and what goes with it; --out needs --export", USAGE)
    if plot and not attention:
        refuse("--plot draws one head's map: name it by --attention, such as L0H5", USAGE)
    try:
        Console().print(encode.table(url, text, attention, key, plot))
    except CannotDraw as error:
        refuse(str(error), USAGE)
    except encode.Unreachable as error:
        refuse(str(error), FAILED)


def export_text(
    url: str, key: str | None, text: str, export: str, out: Path | None, **flags: Any
) -> None:
    """Write all maps of a text for other tools."""
    from service.commands import export as maps
    from service.commands.encode import Unreachable

    if out is None or any(flags.values()):
        refuse("--export goes with a TEXT and --out alone", USAGE)
    try:
        maps.export(url, key, text, export, out)
    except maps.CannotExport as error:
        refuse(str(error), USAGE)
    except Unreachable as error:
        refuse(str(error), FAILED)
    tell(sys.stdout, f"all maps in {out}")


def encode_file(
    url: str, key: str | None, file: Path | None, out: Path | None, **flags: Any
) -> None:
    """Write the vectors of a file's texts, showing how far it is."""
    from service.commands.bulk import job, lines

    if file is None or out is None or flags["attention"] or flags["plot"] or flags["export"]:
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
@click.option("--model", help=f"as for serve  [default: {BUNDLED}]")
@click.option("--corpus", type=FILE, help="sentences as JSON lines; default: the bundled ones")
@click.option("--threshold", multiple=True, metavar="ROLE=NUMBER", help="a role's lowest score")
@click.option("--plot", type=FILE, help="also draw the grid to this .png or .svg")
@click.option("--json", "saved", type=FILE, help="also write what is found, as JSON")
@click.option("--ablate", metavar="TEXT", help="show only how far TEXT moves without each head")
@of_ranking
def heads(head: str | None, corpus: Path | None, saved: Path | None, **flags: Any) -> None:
    """Measure what each head of a model does, and print it.

    With --head, --statistic and --corpus, a file of texts as for `headlight encode`: have a
    running service find the texts in which that head's statistic is highest. Interrupted, the
    command goes on where it stopped when it is given again.
    """
    survey = {name: flags.pop(name) for name in ("model", "threshold", "plot", "ablate")}
    try:
        if head is None and any(flags.values()):
            refuse("--statistic, --url and what else a ranking takes go with --head", USAGE)
        elif head is None:
            survey_heads(corpus=corpus, saved=saved, **survey)
        elif any(survey.values()):
            refuse("--head goes without --model, --threshold, --plot and --ablate", USAGE)
        else:
            rank_texts(head, corpus, saved, **flags)
    except ValueError as error:
        refuse(str(error), USAGE)
    except BrokenPipeError:
        raise  # as in encode
    except OSError as error:
        refuse(str(error), FAILED)


def survey_heads(model: str | None, ablate: str | None, **flags: Any) -> None:
    """Print what each head does, on a corpus or to a text."""
    from service.commands import heads

    try:
        if ablate is None:
            heads.measure(model or BUNDLED, **flags)
        elif any(flags.values()):
            refuse("--ablate can be combined only with --model", USAGE)
        else:
            heads.ablate(model or BUNDLED, ablate)
    except heads.Unusable as error:
        refuse(str(error), USAGE)


def rank_texts(
    name: str,
    file: Path | None,
    saved: Path | None,
    url: str | None,
    key_file: Path | None,
    **flags: Any,
) -> None:
    """Print the texts of a file in which a head does most of something."""
    from service.commands import encode
    from service.commands.bulk import lines, ranking
    from service.commands.bulk.question import TOP, Question

    if file is None or flags["statistic"] is None:
        refuse("--head goes with a --corpus of texts and a --statistic", USAGE)
    texts = lines.File.of(file, flags["format"], flags["column"])
    layer, head = encode.head(name)
    question = Question(
        layer,
        head,
        flags["statistic"],
        top=flags["top"] or TOP,
        lowest=flags["lowest"],
        truncate=flags["truncate"] or "refuse",
    )
    with resumable():
        ranking.rank(url or HERE, read_key(key_file), texts, question, saved)
