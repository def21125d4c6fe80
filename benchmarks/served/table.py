"""From turns to rows: medians over the rounds, ratios round by round, tables in markdown."""

import json
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from served.servers import HALF, OURS

CLOSE = 0.9999  # cosine of a text's vector with ours, below which it is told
MISSING = "-"


@dataclass(frozen=True)
class Turn:
    """What one server did with one workload in one round."""

    round: int
    workload: str
    server: str
    sentences: float  # a second
    p50: float  # milliseconds of a request
    p99: float
    cpu_ms: float  # of all the server's processes, for one sentence
    peak_mib: float
    cosine: float | None  # smallest with our own answers to the same texts
    missing: int = 0  # requests of the open loop without an answer
    generator: float = 0.0  # share of one core that the load took
    others: float = 0.0  # share of the machine that neither the server nor the load took
    p90: float = math.nan  # milliseconds; nan in a run from before it was told


@dataclass(frozen=True)
class Row:
    """One server's figures for one workload."""

    workload: str
    server: str
    rounds: int
    sentences: float
    least: float
    most: float
    ratio: float | None  # ours to it: of sentences a second; of its median time to ours, if open
    ratio_least: float | None
    ratio_most: float | None
    p50: float
    p99: float
    cpu_ms: float
    peak_mib: float
    cosine: float | None
    missing: int
    p90: float = math.nan


def summarise(turns: Iterable[Turn], ours: str, paced: str) -> list[Row]:
    """Return a row for each workload and server, in the order they first came.

    Args:
        ours: the server that all are compared with, round by round.
        paced: the workload whose rate is the load's; it is compared by the median time.
    """
    turns = list(turns)
    groups: dict[tuple[str, str], list[Turn]] = {}
    for turn in turns:
        groups.setdefault((turn.workload, turn.server), []).append(turn)
    order = list(dict.fromkeys(turn.workload for turn in turns))
    groups = dict(sorted(groups.items(), key=lambda item: order.index(item[0][0])))
    return [
        summarise_group(group, groups.get((workload, ours), []), workload == paced)
        for (workload, _), group in groups.items()
    ]


def summarise_group(group: list[Turn], ours: list[Turn], paced: bool) -> Row:
    """Return one row."""
    rates = [turn.sentences for turn in group]
    cosines = [turn.cosine for turn in group if turn.cosine is not None]
    every = ratio_by_round(ours, group, paced)
    return Row(
        workload=group[0].workload,
        server=group[0].server,
        rounds=len(group),
        sentences=statistics.median(rates),
        least=min(rates),
        most=max(rates),
        ratio=statistics.median(every) if every else None,
        ratio_least=min(every, default=None),
        ratio_most=max(every, default=None),
        p50=median_figure(group, lambda turn: turn.p50),
        p99=median_figure(group, lambda turn: turn.p99),
        cpu_ms=median_figure(group, lambda turn: turn.cpu_ms),
        peak_mib=max(turn.peak_mib for turn in group),
        cosine=min(cosines, default=None),
        missing=sum(turn.missing for turn in group),
        p90=median_figure(group, lambda turn: turn.p90),
    )


def median_figure(group: list[Turn], figure: Callable[[Turn], float]) -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(figure(turn) for turn in group)


def ratio_by_round(ours: list[Turn], its: list[Turn], paced: bool) -> list[float]:
    """Return the ratio of each round that both have; a median is of these, never of the medians."""
    mine = {turn.round: turn for turn in ours}
    pairs = [(mine[turn.round], turn) for turn in its if turn.round in mine]
    return [it.p50 / me.p50 if paced else me.sentences / it.sentences for me, it in pairs]


def smallest_cosine(its: dict[int, bytes], ours: dict[int, bytes]) -> float | None:
    """Return the smallest cosine of two servers' vectors; 0 where there are not as many.

    Args:
        its, ours: answers' bodies by their requests' numbers.
    """
    least = None
    for number in its.keys() & ours.keys():
        one, other = read_vectors(its[number]), read_vectors(ours[number])
        if one.shape != other.shape:
            return 0.0
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        least = min(1.0 if least is None else least, float(((one * other).sum(1) / lengths).min()))
    return least


def read_vectors(body: bytes) -> np.ndarray[Any, Any]:
    """Return an answer's vectors, (texts, width); TEI's list of them, or OpenAI's object."""
    answer = json.loads(body)
    return np.array([row["embedding"] for row in answer["data"]] if "data" in answer else answer)


def quantile(values: list[float], share: float) -> float:
    """Return the value that this share does not exceed, by nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def format_table(every: list[Row]) -> str:
    """Return a table for people, and for benchmarks/results.md."""
    head = (
        "| workload | server | sentences/s (least to most) | Headlight to it (least to most) "
        "| p50 ms | p90 ms | p99 ms | CPU ms a sentence | peak MiB | answers |"
    )
    return "\n".join([head, "|---" * 10 + "|", *map(format_row, every)])


def format_ratios(every: list[Row], ours: str) -> str:
    """Return the ratios alone, a workload a column: medians of the rounds' own, least to most."""
    names = list(dict.fromkeys(row.workload for row in every))
    servers = [name for name in dict.fromkeys(row.server for row in every) if name != ours]
    found = {(row.server, row.workload): row for row in every}
    lines = [f"| {ours} to | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for server in servers:
        cells = [format_ratio(found.get((server, name))) for name in names]
        lines.append(f"| {server} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_both_ratios(turns: list[Turn], paced: str) -> str:
    """Return the ratios of both of ours; `paced` as of `summarise`."""
    ran = {turn.server for turn in turns}
    both = [ours for ours in (OURS, HALF) if ours in ran]
    return "\n\n".join(format_ratios(summarise(turns, ours, paced), ours) for ours in both)


def format_ratio(row: Row | None) -> str:
    """Return a row's ratio with its least and most."""
    if row is None or row.ratio is None:
        return MISSING
    if row.ratio_least == row.ratio_most:  # one round, or ours to itself
        return f"{row.ratio:.2f}"
    return f"{row.ratio:.2f} ({row.ratio_least:.2f} to {row.ratio_most:.2f})"


def format_row(row: Row) -> str:
    """Return one line of the table."""
    cells = [
        row.workload,
        row.server,
        f"{row.sentences:.1f} ({row.least:.1f} to {row.most:.1f})",
        format_ratio(row),
        f"{row.p50:.1f}",
        MISSING if math.isnan(row.p90) else f"{row.p90:.1f}",
        f"{row.p99:.1f}",
        f"{row.cpu_ms:.2f}",
        f"{row.peak_mib:.0f}",
        format_agreement(row),
    ]
    return f"| {' | '.join(cells)} |"


def format_agreement(row: Row) -> str:
    """Return whether they are the same as ours, and whether all came."""
    if row.cosine is None:
        said = "not compared"
    else:
        said = "same" if row.cosine >= CLOSE else f"cosine {row.cosine:.4f}"
    return f"{said}, {row.missing} missing" if row.missing else said


def describe_noise(turns: list[Turn]) -> str:
    """Return what the machine did besides, in one sentence."""
    others, load = [turn.others for turn in turns], [turn.generator for turn in turns]
    return (
        f"Others took {statistics.mean(others):.0%} of the machine, {max(others):.0%} at most; "
        f"the load {statistics.mean(load):.1%} of a core, {max(load):.0%} at most."
    )


def to_json(conditions: dict[str, Any], turns: list[Turn], every: list[Row]) -> str:
    """Return everything as JSON, a turn and a row a line."""
    parts = [f' "{name}": {json.dumps(value)}' for name, value in conditions.items()]
    for name, values in (("rows", every), ("turns", turns)):
        lines = ",\n".join(f"  {json.dumps(round_figures(asdict(value)))}" for value in values)
        parts.append(f' "{name}": [\n{lines}\n ]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def round_figures(values: dict[str, Any]) -> dict[str, Any]:
    """Return numbers without digits that mean nothing."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
