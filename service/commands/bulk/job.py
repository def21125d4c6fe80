"""`headlight encode --file`: a file of texts -> a file of vectors, safetensors or NumPy's.

Interrupted, it leaves what it has; the same command goes on from there. One request is in
flight at a time, so no more than that one is ever computed twice.
"""

from contextlib import closing
from pathlib import Path
from typing import Literal

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

from headlight_client import Client, HeadlightError, NoAnswer, RequestRefused
from headlight_client.answers import same
from service.commands.bulk import lines
from service.commands.bulk.columns import BadLine
from service.commands.bulk.lines import Changed, File, Source
from service.commands.bulk.vectors import SUFFIXES, CannotResume, Vectors

INFO_SECONDS = 5.0  # to find the service at all
PATIENCE_SECONDS = 300.0  # for a request once it goes: a restart of the service in between
# Rows of texts that fitted are the same however longer ones are cut
NOT_CUT = {"truncate": "refuse"}

Truncate = Literal["refuse", "right", "left"]


class Unusable(Exception):
    """What the caller can mend in the command or the files; the message is one line."""


class Stopped(Exception):
    """The service ended the job early, what is done is kept; the message is one line."""


class Rate(ProgressColumn):
    """Texts per second since the job was started or resumed."""

    def render(self, task: Task) -> Text:
        """A number, once there is one."""
        return Text("" if task.speed is None else f"{task.speed:.0f} texts/s")


def encode(url: str, key: str | None, file: File, out: Path, truncate: Truncate) -> int:
    """Encode every line of a file, or every one that an earlier run has not.

    Returns:
        How many vectors `out` holds.

    Raises:
        Unusable, Stopped: in a line, why not.
        OSError: a file cannot be read or written.
    """
    if out.suffix not in SUFFIXES:
        raise Unusable(f"{out}: the name of --out ends in {' or '.join(SUFFIXES)}")
    try:
        with _client(url, key) as client:
            info = client.info(deadline=INFO_SECONDS)
            with file.lasting(out.parent) as lasting:
                source = lines.check(lasting, info)
                origin = {name: info[name] for name in ("model", "weights", "numerics")}
                origin |= {**source.origin, "truncate": truncate}
                with Vectors(out, source.lines, origin, NOT_CUT) as vectors:
                    _fill(vectors, client, source, truncate)
                    vectors.finish()
    except BadLine as error:
        raise Unusable(f"{file.name}: {error}") from error
    except CannotResume as error:
        raise Unusable(str(error)) from error
    except (HeadlightError, Changed) as error:
        raise Stopped(str(error)) from error
    return source.lines


def _client(url: str, key: str | None) -> Client:
    try:
        return Client(url, key=key, patience_seconds=PATIENCE_SECONDS, concurrency=1)
    except ValueError as error:
        raise Unusable(str(error)) from error


def _fill(vectors: Vectors, client: Client, source: Source, truncate: Truncate) -> None:
    """Add the rows that are not there yet."""
    start = vectors.rows
    if start == vectors.count:
        return
    stream = client.stream(source.texts(start), truncate=truncate)
    with closing(stream), _bar() as bar:
        task = bar.add_task(vectors.out.name, total=vectors.count, completed=start)
        try:
            for part in stream:
                same(part.head, vectors.origin)
                if part.pooled is None:
                    raise RuntimeError("an answer without pooled vectors: this is a bug")
                vectors.append(part.pooled)
                bar.advance(task, len(part.items))
        except RequestRefused as refused:
            raise Stopped(f"{_by_line(refused, start, source)}; what is done is kept") from refused
        except NoAnswer as error:
            raise Stopped(f"{error}; what is done is kept") from error


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _by_line(refused: RequestRefused, start: int, source: Source) -> str:
    """A refusal, by the line it is about where it is about one."""
    for fault in refused.errors:
        match fault.loc:
            case ("inputs", int(index), *_):
                said = refused.detail.removeprefix(f"inputs[{index}]").removeprefix(".text")
                place = f"{source.file.unit} {start + index + 1}"
                return f"{place}{said.rstrip('.')} ({fault.code})"
    return str(refused)
