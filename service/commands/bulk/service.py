"""A running service, asked about every text of a file; and what can end such a job."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
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
from service.commands.bulk.columns import BadLine
from service.commands.bulk.lines import Changed, File, Source

INFO_SECONDS = 5.0  # to find the service at all
PATIENCE_SECONDS = 300.0  # for a request once it goes: a restart of the service in between

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


@contextmanager
def connected(url: str, key: str | None, file: File) -> Iterator[tuple[Client, dict[str, Any]]]:
    """A client with one request in flight at a time, and the service's answer of GET /info.

    Raises:
        Unusable, Stopped: what ends a job over the file inside, in a line.
    """
    try:
        with _client(url, key) as client:
            yield client, client.info(deadline=INFO_SECONDS)
    except BadLine as error:
        raise Unusable(f"{file.name}: {error}") from error
    except (HeadlightError, Changed) as error:
        raise Stopped(str(error)) from error


def answers(
    client: Client,
    source: Source,
    start: int,
    origin: Mapping[str, str],
    **options: Unpack[Options],
) -> Generator[Encoded, None, None]:
    """The answers to the texts after the first `start`, one for each request, under a bar.

    Args:
        origin: the model, weights and numerics that all of them come from.

    Raises:
        ModelChanged: one comes from another.
        Stopped: the service refused a text, or is gone.
    """
    if start == source.lines:
        return
    stream = client.stream(source.texts(start), **options)
    with closing(stream), _bar() as bar:
        task = bar.add_task("texts", total=source.lines, completed=start)
        try:
            for part in stream:
                check_origin(part.origin, origin)
                yield part
                bar.advance(task, len(part.items))
        except RequestRefused as refused:
            raise Stopped(f"{_by_line(refused, start, source)}; what is done is kept") from refused
        except NoAnswer as error:
            raise Stopped(f"{error}; what is done is kept") from error


def _client(url: str, key: str | None) -> Client:
    try:
        return Client(url, key=key, patience_seconds=PATIENCE_SECONDS, concurrency=1)
    except ValueError as error:
        raise Unusable(str(error)) from error


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
