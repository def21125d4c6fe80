"""A running service, asked questions about every state of a file: `headlight encode --questions`.

Answers are kept as rows of numbers (vectors.py), so that the same command goes on from there; the
Parquet file is written of them at the end. A row has of each question, NaN where there is none:

    the options' probabilities; the number of the choice; the expected level; the confidence;
    whether it was cut; and of each of the strongest words of the state, its first character, its
    end and its share
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson

from headlight_client import Decision, Decisions, HeadlightError, NoAnswer, RequestRefused
from headlight_client.answers import check_origin
from service.commands.bulk import parquet
from service.commands.bulk.jobs import (
    PATIENCE_SECONDS,
    Truncate,
    connect,
    origin_of,
    progress_bar,
)
from service.commands.bulk.parquet import STATES, QuestionColumn
from service.commands.bulk.source import Source, check_lines
from service.commands.bulk.text_file import TextFile
from service.commands.bulk.vectors import PARQUET_SUFFIX, VectorFile
from service.commands.terminal import Failed, Unusable

AT_ONCE = 16  # states in flight, each a request of its own; so many may be asked twice
TOP_WORDS = 3  # of a reason

Method = Literal["alone", "input"]  # of a reason


def read_questions(path: Path, words: int) -> tuple[dict[str, Any], list[QuestionColumn]]:
    """Read a JSON file of questions by name, as POST /v1/systemone takes them.

    Raises:
        Unusable: it holds none; the service says what else is wrong with one.
        OSError: it cannot be read.
    """
    try:
        questions = orjson.loads(path.read_bytes())
        columns = [
            QuestionColumn(name, question["type"], _option_names(question), words)
            for name, question in questions.items()
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unusable(f"{path} holds no JSON object of questions by name") from error
    return questions, columns


def _option_names(question: Mapping[str, Any]) -> list[str]:
    """Return the names of a question's options as answers have them."""
    if question["type"] == "noul":
        return ["false", "true"]
    criteria = question["criteria"]
    return [*map(str, range(len(criteria)) if question["type"] == "score" else criteria)]


def decide_lines(
    url: str,
    key: str | None,
    file: TextFile,
    out: Path,
    questions_file: Path,
    reason: Method | None,
    truncate: Truncate,
) -> int:
    """Answer questions about each text of a file in `out`, except those that an earlier run did.

    Returns:
        The number of rows that `out` holds.

    Raises:
        Unusable, Failed, OSError: why not, in a line.
    """
    if out.suffix != PARQUET_SUFFIX:
        raise Unusable(f"with --questions, --out must end in {PARQUET_SUFFIX}, got {out}")
    questions, columns = read_questions(questions_file, TOP_WORDS if reason else 0)
    how: dict[str, Any] = {"truncate": truncate}
    how |= {"reason": {"method": reason}} if reason else {}
    with (
        connect(url, key, PATIENCE_SECONDS) as (client, info),
        file.as_regular_file(out.parent) as kept,
    ):
        parquet.check_output(kept, questions)
        source = check_lines(kept, info)
        _check_single(source)
        origin = origin_of(info) | source.origin
        origin |= {"truncate": truncate, "max_tokens": str(info["max_tokens"])}
        origin |= {"questions": orjson.dumps(questions).decode(), "reason": str(reason)}
        with closing(VectorFile(out, source.lines, origin)) as answers:
            ask = partial(client.decide, questions=questions, **how)
            collect_answers(ask, source, answers, columns)
            states = (file.format == "parquet" and file.column) or STATES
            append = partial(parquet.append_answers, columns, states)
            answers.finish(partial(parquet.write_columns, kept, source.texts(0), origin, append))
    return source.lines


def _check_single(source: Source) -> None:
    """Refuse pairs of texts, which only a line of jsonl can hold.

    Raises:
        Unusable: names the first.
    """
    for number, state in enumerate(source.texts(0) if source.file.format == "jsonl" else (), 1):
        if not isinstance(state, str):
            raise source.file.refusal(number, "a state is one text, and this is a pair")


def to_numbers(column: QuestionColumn, decision: Decision) -> list[float]:
    """Return an answer as numbers, `width` of its column."""
    shares = [decision.probabilities[option] for option in column.options]
    choice = None if decision.choice is None else column.options.index(decision.choice)
    facts = (choice, decision.score, decision.confidence, decision.truncated is not None)
    reason = decision.reason.strongest(column.words) if decision.reason else []
    words = [number for word in reason for number in (*word.characters, word.share)]
    rest = [math.nan] * (3 * column.words - len(words))
    return [*shares, *(math.nan if x is None else x for x in facts), *words, *rest]


def collect_answers(
    ask: Callable[[str], Decisions],
    source: Source,
    answers: VectorFile,
    columns: Sequence[QuestionColumn],
) -> None:
    """Append the rows that `answers` lacks, some states at a time, with a progress bar.

    Raises:
        ModelChanged: an answer comes from another model than the rows so far.
        Failed: the service refused a state, or is gone.
    """
    pool, states = ThreadPoolExecutor(AT_ONCE), source.texts(answers.rows)
    try:
        with progress_bar() as bar:
            task = bar.add_task("texts", total=source.lines, completed=answers.rows)
            while batch := list(islice(states, AT_ONCE)):
                _append_batch(pool.map(ask, batch), answers, columns)
                bar.advance(task, len(batch))
    except (RequestRefused, NoAnswer) as error:
        line = f"{_word_by_row(error, answers.rows + 1, source)}; the work so far is kept"
        raise Failed(line) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # the client's end ends what it waits for


def _append_batch(
    told: Iterable[Decisions], answers: VectorFile, columns: Sequence[QuestionColumn]
) -> None:
    """Append the answers about some states, up to the first that does not come."""
    rows = list[list[float]]()
    try:
        for decisions in told:
            check_origin({"weights": str(decisions.weights)}, answers.origin)
            numbers = (to_numbers(column, decisions[column.name]) for column in columns)
            rows.append([*chain.from_iterable(numbers)])
    finally:
        if rows:
            answers.append(np.array(rows))


def _word_by_row(error: HeadlightError, number: int, source: Source) -> str:
    """Word why there is no answer, with the state's place in the file if it is about that."""
    if isinstance(error, RequestRefused) and error.errors and error.errors[0].loc == ("state",):
        detail = error.detail.removeprefix("state: ").rstrip(".")
        return f"{source.file.unit} {number}: {detail} ({error.code})"
    return str(error)
