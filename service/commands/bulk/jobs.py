"""A running service, asked about every text of a file: `headlight encode --file`.

Interrupted, it leaves the rows so far; the same command goes on from there. One request is in
flight at a time, so no more than that one is ever computed twice.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from headlight_client import Client, Encoded, HeadlightError, NoAnswer, Options, RequestRefused
from headlight_client.answers import check_origin
from headlight_client.formats import Array
from service.commands.bulk.source import Source, check_lines
from service.commands.bulk.text_file import TextFile
from service.commands.bulk.vectors import OUTPUT_SUFFIXES, PARQUET_SUFFIX, VectorFile
from service.commands.terminal import Failed, Unusable, print_now
from service.tables.wording.words import list_names

START_ADVICE = (
    "start a service with `headlight serve` (make serve in a checkout), or name one with --url"
)
INFO_SECONDS = 5.0  # for GET /info, which shows that the service is there
PATIENCE_SECONDS = 300.0  # for a request of a job, to outlast a restart of the service

Truncate = Literal["refuse", "right", "left"]  # of a text that is too long, as in a request


def encode_lines(
    url: str,
    key: str | None,
    file: TextFile,
    out: Path,
    truncate: Truncate,
    precision: str = "float",
) -> int:
    """Encode the texts of a file into `out`, except those that an earlier run has encoded.

    Args:
        precision: number format of the vectors, as in a request.

    Returns:
        The number of vectors that `out` holds.

    Raises:
        Unusable, Failed, OSError: why not, in a line.
    """
    if out.suffix not in OUTPUT_SUFFIXES:
        raise Unusable(f"--out must end in {list_names(OUTPUT_SUFFIXES)}, got {out}")
    if out.suffix == PARQUET_SUFFIX and file.format != "parquet":
        raise Unusable(f"{out}: a .parquet has all columns of a .parquet; {file.name} is none")
    with (
        connect(url, key, PATIENCE_SECONDS) as (client, info),
        file.as_regular_file(out.parent) as kept,
    ):
        if out.suffix == PARQUET_SUFFIX:
            from service.commands.bulk import parquet  # it needs pyarrow

            parquet.check_output(kept)
        source = check_lines(kept, info)
        if blanks := source.word_blanks():
            print_now(sys.stderr, f"headlight: {blanks}")
        origin = origin_of(info) | source.origin
        origin |= {"truncate": truncate, "max_tokens": str(info["max_tokens"])}
        origin |= {} if precision == "float" else {"precision": precision}
        with closing(VectorFile(out, source.lines, origin)) as vectors:
            pooled = precision == "float" or {"precision": precision}
            collect_rows(client, source, vectors, _pooled_vectors, truncate=truncate, pooled=pooled)
            by_parquet = out.suffix == PARQUET_SUFFIX
            vectors.finish(partial(parquet.write_vectors, kept, origin) if by_parquet else None)
    return source.lines


def _pooled_vectors(answer: Encoded) -> Array:
    """Return the pooled vectors of an answer, (texts, numbers)."""
    if answer.pooled is None:
        raise RuntimeError("an answer without pooled vectors: this is a bug")
    return answer.pooled


def collect_rows(
    client: Client,
    source: Source,
    vectors: VectorFile,
    rows_of: Callable[[Encoded], Array],
    **options: Unpack[Options],
) -> None:
    """Append the rows that `vectors` lacks, a request at a time, with a progress bar.

    Args:
        rows_of: takes the rows out of an answer, (texts, numbers).

    Raises:
        ModelChanged: an answer comes from another model than the rows so far.
        Failed: the service refused a text, or is gone.
    """
    start = vectors.rows
    if start == source.lines:
        return
    with closing(client.stream(source.texts(start), **options)) as stream, progress_bar() as bar:
        task = bar.add_task("texts", total=source.lines, completed=start)
        try:
            for answer in stream:
                check_origin(answer.origin, vectors.origin)
                vectors.append(rows_of(answer))
                bar.advance(task, len(answer.items))
        except (RequestRefused, NoAnswer) as error:
            line = (
                _word_by_line(error, start, source) if isinstance(error, RequestRefused) else error
            )
            raise Failed(f"{line}; the work so far is kept") from error


@contextmanager
def connect(
    url: str, key: str | None, patience_seconds: float
) -> Iterator[tuple[Client, dict[str, Any]]]:
    """Yield a client with one request in flight at a time, and the answer of GET /info.

    Args:
        patience_seconds: for each request, with all its tries.

    Raises:
        Unusable: the address is not valid.
        Failed: the service is not there, as is known within INFO_SECONDS; or a call failed.
    """
    try:
        client = Client(url, key=key, patience_seconds=patience_seconds, concurrency=1)
    except ValueError as error:
        raise Unusable(str(error)) from error
    try:
        with client:
            try:
                info = client.info(deadline=INFO_SECONDS)
            except NoAnswer as error:
                raise Failed(f"{error}; {START_ADVICE}") from error
            yield client, info
    except HeadlightError as error:
        raise Failed(str(error)) from error


def origin_of(info: Mapping[str, Any]) -> dict[str, str]:
    """Return the origin of a service's answers, as Answer.origin has it, from GET /info."""
    return {name: info[name] for name in ("model", "weights", "numerics")}


class Rate(ProgressColumn):
    """A column of the progress bar: texts per second since the job was started or resumed."""

    def render(self, task: Task) -> Text:
        """Return the rate as text, empty until there is one."""
        return Text("" if task.speed is None else f"{task.speed:.0f} texts/s")


def progress_bar() -> Progress:
    """Return a progress bar that is drawn on stderr."""
    columns = BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn()
    return Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True))


def _word_by_line(refused: RequestRefused, start: int, source: Source) -> str:
    """Word a refusal with the line of the file that it is about, if it is about one."""
    for fault in refused.errors:
        match fault.loc:
            case ("inputs", int(index), *_):
                detail = refused.detail.removeprefix(f"inputs[{index}]").removeprefix(".text")
                line = f"{source.file.unit} {start + index + 1}"
                return f"{line}{detail.rstrip('.')} ({fault.code})"
    return str(refused)
