"""`headlight encode`, `heads` and `space`: the commands that ask a model about texts.

What they need is imported once they run, so that --help is quick.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from model.maps.choices import STATISTIC_FIELDS
from service.commands.options import (
    COLUMN,
    DEFAULT_URL,
    EXISTING_FILE,
    FILE,
    FORMAT,
    JSON,
    KEY_FILE,
    TRUNCATE,
    URL,
    read_key,
)
from service.commands.terminal import FAILED, Unusable, end_in_one_line, print_now
from service.tables.settings import Settings

if TYPE_CHECKING:
    from service.commands.bulk.text_file import TextFile

STOPPED_MESSAGE = "stopped; run the same command again to resume"
BUNDLED_MODEL = Settings.model_fields["model"].default


@click.command()
@click.argument("text", required=False)
@click.option("--attention", metavar="L5H11", help="also show what this head attends to")
@click.option("--plot", type=FILE, help="with --attention: also draw that map, .png or .svg")
@click.option("--file", type=FILE, help="encode a file of texts instead of TEXT; - reads stdin")
@FORMAT
@COLUMN
@click.option("--out", type=FILE, help="with --file: the output, .safetensors, .npy or .parquet")
@click.option(
    "--precision",
    type=click.Choice(["float", "int8", "uint8", "binary", "ubinary"]),
    help="number format of the vectors in --out  [default: float]",
)
@click.option("--questions", type=FILE, help="with --file: JSON of questions to decide, by name")
@click.option(
    "--reason",
    type=click.Choice(["alone", "input"]),
    help="with --questions: add the words that each decision rests on",
)
@TRUNCATE
@URL
@KEY_FILE
@end_in_one_line()
def encode(text: str | None, url: str, key_file: Path | None, **flags: Any) -> None:
    """Encode TEXT with a running service and print a table, or encode a whole file of texts.

    With --questions, --out is a .parquet of decisions about each text. With --file and --out, an
    interrupted command resumes when it is run again.
    """
    key = read_key(key_file)
    if text is not None:
        encode_text(url, key, text, **flags)
    else:
        encode_file(url, key, **flags)


def encode_text(
    url: str, key: str | None, text: str, attention: str | None, plot: Path | None, **flags: Any
) -> None:
    """Print a row for each token of a text, as the service at `url` encodes it.

    Args:
        key: API key, if the service asks for one.
        attention: head whose map to draw too, such as L5H11.
        plot: picture of that map to write.
        flags: options that go with --file alone, all of which must be left out.
    """
    from rich.console import Console

    from service.commands import encode

    if any(flags.values()):
        raise Unusable(f"TEXT and {_name_options(flags)} exclude each other")
    if plot and not attention:
        raise Unusable("--plot also needs --attention, such as --attention L0H5")
    Console().print(encode.draw_tokens(url, key, text, attention, plot))


def encode_file(
    url: str, key: str | None, file: Path | None, out: Path | None, **flags: Any
) -> None:
    """Write the vectors of a file's texts to `out`, or what is decided about each.

    Args:
        flags: format, column, precision, questions, reason and truncate, as options of the command;
            and attention and plot, which must be left out.
    """
    from service.commands.bulk import jobs, text_file

    if file is None or out is None:
        raise Unusable("--file also needs --out" if file else "expected TEXT, or --file and --out")
    if flags["attention"] or flags["plot"]:
        options = {name: flags[name] for name in ("attention", "plot")}
        raise Unusable(f"--file and {_name_options(options)} exclude each other")
    texts = text_file.TextFile.of(file, flags["format"], flags["column"])
    if flags["questions"] or flags["reason"]:
        return decide_file(url, key, texts, out, **flags)
    with end_in_one_line(STOPPED_MESSAGE):
        precision = flags["precision"] or "float"
        count = jobs.encode_lines(url, key, texts, out, flags["truncate"] or "refuse", precision)
    print_now(sys.stdout, f"{count} vectors in {out}")


def decide_file(
    url: str,
    key: str | None,
    file: "TextFile",
    out: Path,
    questions: Path | None,
    reason: Any,
    **flags: Any,
) -> None:
    """Write what is decided about each of a file's texts to `out`, with a progress bar.

    Args:
        flags: truncate, as an option of the command; and precision, which must be left out.
    """
    if questions is None:
        raise Unusable("--reason also needs --questions")
    if flags["precision"]:
        raise Unusable("--questions and --precision exclude each other")
    from service.commands.bulk import text_file

    text_file.check_pyarrow()
    from service.commands.bulk import decisions  # it needs pyarrow

    truncate: Any = flags["truncate"] or "refuse"
    with end_in_one_line(STOPPED_MESSAGE):
        count = decisions.decide_lines(url, key, file, out, questions, reason, truncate)
    print_now(sys.stdout, f"{count} rows in {out}")


def _name_options(flags: Mapping[str, Any]) -> str:
    """Return the first option that is given, as it was typed."""
    return next(f"--{name.replace('_', '-')}" for name, value in flags.items() if value)


@click.command()
@click.option("--model", help=f"as for serve  [default: {BUNDLED_MODEL}]")
@click.option("--corpus", type=FILE, help="sentences as JSON lines  [default: the bundled ones]")
@click.option(
    "--threshold", multiple=True, metavar="ROLE=NUMBER", help="the lowest score of a role"
)
@click.option("--plot", type=FILE, help="also draw the grid to this .png or .svg")
@click.option("--json", "saved", type=FILE, help="also write the results as JSON")
@click.option("--ablate", metavar="TEXT", help="show only how far TEXT moves without each head")
@click.option("--head", metavar="L5H11", help="rank the texts of --corpus by this head")
@click.option(
    "--statistic", type=click.Choice(STATISTIC_FIELDS), help="with --head: the statistic to rank by"
)
@click.option("--lowest", is_flag=True, help="list the smallest values, not the largest")
@click.option("--top", type=click.IntRange(1, 1000), help="number of texts to list  [default: 50]")
@FORMAT
@COLUMN
@TRUNCATE
@click.option("--url", help=f"with --head: the service  [default: {DEFAULT_URL}]")
@KEY_FILE
@end_in_one_line()
def heads(head: str | None, corpus: Path | None, saved: Path | None, **flags: Any) -> None:
    """Measure what each head of a model does, and print it.

    With --head, --statistic and --corpus (a file of texts as for `headlight encode`): have a
    running service find the texts in which the head's statistic is highest. An interrupted
    command resumes when it is run again.
    """
    survey = {name: flags.pop(name) for name in ("model", "threshold", "plot", "ablate")}
    if head is None and any(flags.values()):
        raise Unusable(f"{_name_options(flags)} also needs --head")
    if head is None:
        survey_heads(corpus=corpus, saved=saved, **survey)
    elif any(survey.values()):
        raise Unusable(f"--head and {_name_options(survey)} exclude each other")
    else:
        rank_texts(head, corpus, saved, **flags)


def survey_heads(model: str | None, ablate: str | None, **flags: Any) -> None:
    """Print what each head does; with `ablate`, how far that text moves without each head.

    Args:
        flags: corpus, saved, threshold and plot, as `measure_heads` takes them.
    """
    from service.commands import heads

    if ablate is None:
        heads.measure_heads(model or BUNDLED_MODEL, **flags)
    elif any(flags.values()):
        raise Unusable("--ablate takes no other option but --model")
    else:
        heads.print_ablation(model or BUNDLED_MODEL, ablate)


def rank_texts(
    head: str,
    file: Path | None,
    saved: Path | None,
    url: str | None,
    key_file: Path | None,
    **flags: Any,
) -> None:
    """Print the texts of a file in which a head, such as L5H11, has the highest statistic.

    Args:
        saved: where to write the ranking as JSON, too.
        flags: statistic, format, column, top, truncate, and lowest (to print the lowest instead),
            as options of the command.
    """
    from service.commands import encode
    from service.commands.bulk import ranking, text_file

    if file is None or flags["statistic"] is None:
        raise Unusable(f"--head also needs {'--statistic' if file else '--corpus'}")
    texts = text_file.TextFile.of(file, flags["format"], flags["column"])
    question = ranking.RankingQuestion(
        *encode.parse_head(head, "--head"),
        flags["statistic"],
        top=flags["top"] or ranking.DEFAULT_TOP,
        lowest=flags["lowest"],
        truncate=flags["truncate"] or "refuse",
    )
    with end_in_one_line(STOPPED_MESSAGE):
        ranking.rank_texts(url or DEFAULT_URL, read_key(key_file), texts, question, saved)


@click.command()
@click.argument("url", default=DEFAULT_URL)
@click.option("--save", type=FILE, help="save the space with 32 canary vectors")
@click.option(
    "--check", "saved", type=EXISTING_FILE, help="compute the canaries of a saved space again"
)
@KEY_FILE
@JSON
@end_in_one_line()
def space(
    url: str, save: Path | None, saved: Path | None, key_file: Path | None, as_json: bool
) -> None:
    """Show which vectors can share an index with those of the service at URL.

    With --check, it exits with 1 if the vectors have changed.
    """
    from rich.console import Console

    from service.commands import space as view
    from service.commands.bulk import jobs

    if save and saved:
        raise Unusable("--save and --check exclude each other")
    with jobs.connect(url, read_key(key_file), jobs.PATIENCE_SECONDS) as (client, info):
        if save:
            return print_now(sys.stdout, f"{view.save_space(client, save)} in {save}")
        if not saved:
            return view.print_space(info, Console(), as_json=as_json)
        checked = view.recheck_space(client, saved)
    view.print_comparison(checked, Console(), as_json=as_json)
    if not checked.same:
        raise SystemExit(FAILED)
