"""What a running service does now, on one screen: `headlight top`.

What a service does not publish is shown as `-`.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.commands.interval import Interval, read
from service.commands.terminal import Failed

MOST_ROUTES, MOST_REPLICAS = 5, 8  # rows of a table, so that all fits a screen of 24 lines
BAR_CELLS = 5
WAITING = [f"waiting_{what}{limit}" for what in ("requests", "tokens") for limit in ("", "_limit")]

Figures = Mapping[str, Any]  # by name; see `figures`


def intervals(url: str, key: str | None, period: float, once: bool) -> Iterator[Interval]:
    """Give what happened in each period from now: in one, or until Ctrl-C.

    Raises:
        Failed: see `read`.
    """
    before = read(url, key)
    while True:
        time.sleep(period)
        after = read(url, key)
        yield Interval(before, after)
        if once:
            return
        before = after


def watch(url: str, key: str | None, period: float, console: Console) -> None:
    """Show a service until Ctrl-C, anew every `period` seconds.

    Raises:
        Failed: see `read`.
    """
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for shown in screens(url, key, period):
            live.update(shown, refresh=True)


def screens(url: str, key: str | None, period: float) -> Iterator[Group]:
    """Give what to show every `period` seconds; while no page comes, the last screen and why.

    Raises:
        Failed: not even a first page came.
    """
    before, shown = read(url, key), Group()
    while True:
        time.sleep(period)
        try:
            after = read(url, key)
        except Failed as error:
            yield Group(Text(f"{error}; retrying every {period:g} s", style="bold"), shown)
            continue
        shown = screen(Interval(before, after))
        yield shown
        before = after


def figures(interval: Interval) -> dict[str, Any]:
    """Gather the figures of every route, stage and replica; None where nothing is published.

    Times are in seconds, rates are per second, `waiting` is now.
    """
    facts = next(iter(interval.labels("model_info")), {})
    routes = interval.rates("requests_total", "route")
    stages = interval.rates("stage_duration_seconds_sum", "stage")
    ready = interval.gauges("ready", "replica")
    return {
        "seconds": interval.after.at - interval.before.at,
        **{name: facts.get(name) for name in ("model", "dtype", "device")},
        "answers": interval.rates("requests_total", "code"),
        "tokens": interval.rate("tokens_total"),
        "turned_away": interval.rate("shed_total"),
        "in_flight": _sum(interval, "requests_in_flight"),
        "routes": {
            route: {"requests": rate, **_quantiles(interval, "request", route=route)}
            for route, rate in routes.items()
        },
        "stages": {
            stage: {"seconds": rate, **_quantiles(interval, "stage", stage=stage)}
            for stage, rate in stages.items()
        },
        "replicas_expected": _sum(interval, "replicas_expected"),
        "replicas": {name: _replica(interval, name, bool(ready[name])) for name in ready},
    }


def _quantiles(interval: Interval, what: str, **only: str) -> dict[str, float | None]:
    name = f"{what}_duration_seconds"
    return {f"p{share * 100:g}": interval.quantile(name, share, **only) for share in (0.5, 0.99)}


def _replica(interval: Interval, name: str, ready: bool) -> dict[str, Any]:
    """Gather the figures of a replica, by the names of the screen."""
    return {
        "ready": ready,
        "requests": interval.rate("requests_total", replica=name),
        "tokens": interval.rate("tokens_total", replica=name),
        **{gauge: _sum(interval, gauge, replica=name) for gauge in WAITING},
        "batch_sequences": interval.mean("batch_sequences", replica=name),
        "batch_tokens": interval.mean("batch_tokens", replica=name),
    }


def _sum(interval: Interval, gauge: str, **only: str) -> float | None:
    values = interval.gauges(gauge, "", **only)
    return sum(values.values()) if values else None


def screen(interval: Interval) -> Group:
    """Draw one screenful."""
    seen = figures(interval)
    middle = Table.grid(padding=(0, 3))
    middle.add_row(_routes(seen["routes"]), _stages(seen["stages"]))
    return Group(_title(seen), "", _totals(seen), "", middle, "", _replicas(seen["replicas"]))


def _title(seen: Figures) -> Text:
    model, dtype, device = (seen[name] or "-" for name in ("model", "dtype", "device"))
    ready = sum(replica["ready"] for replica in seen["replicas"].values())
    there = max(len(seen["replicas"]), int(seen["replicas_expected"] or 0))
    return Text(f"{model}   {dtype} on {device}   {ready} of {there} ready")


def _totals(seen: Figures) -> Table:
    """Draw what is true of the service as a whole, two facts a line."""
    codes = sorted(seen["answers"].items())
    facts = {
        "answers/s": "  ".join(f"{code}: {_number(rate)}" for code, rate in codes if rate) or "-",
        "tokens/s": _number(seen["tokens"]),
        "turned away/s": _number(seen["turned_away"]),
        "in flight": _number(seen["in_flight"]),
    }
    for what in ("requests", "tokens"):
        queues = [replica[f"waiting_{what}"] for replica in seen["replicas"].values()]
        known = [length for length in queues if length is not None]
        facts[f"{what} waiting"] = _number(sum(known) if known else None)
    table = Table.grid(padding=(0, 3))
    cells = [cell for name, value in facts.items() for cell in (Text(name, style="bold"), value)]
    for start in range(0, len(cells), 4):
        table.add_row(*cells[start : start + 4])
    return table


def _routes(routes: Figures) -> Table:
    """Draw requests by route, the busiest first."""
    table = _table("route", "requests/s", "p50", "p99")
    busiest = sorted(routes.items(), key=lambda route: -route[1]["requests"])
    for name, one in busiest[:MOST_ROUTES]:
        table.add_row(Text(name), _number(one["requests"]), _time(one["p50"]), _time(one["p99"]))
    return table


def _stages(stages: Figures) -> Table:
    """Draw where requests spend their time, in the order in which they are met."""
    table = _table("stage", "share", "p50", "p99")
    whole = sum(stage["seconds"] for stage in stages.values())
    for name, one in stages.items():
        share = f"{one['seconds'] / whole:.0%}" if whole else "-"
        table.add_row(Text(name), share, _time(one["p50"]), _time(one["p99"]))
    return table


def _replicas(replicas: Figures) -> Table:
    """Draw a row for each replica: its speed, its queue against its limits, its batches."""
    speeds = ("requests\nper s", "tokens\nper s")
    queues = ("requests\nwaiting", "tokens\nwaiting")
    table = _table(
        "replica", "ready", *speeds, *queues, "sequences\nper batch", "tokens\nper batch"
    )
    for name, one in sorted(replicas.items())[:MOST_REPLICAS]:
        table.add_row(
            Text(name),
            "yes" if one["ready"] else "NO",
            _number(one["requests"]),
            _number(one["tokens"]),
            _filled(one["waiting_requests"], one["waiting_requests_limit"]),
            _filled(one["waiting_tokens"], one["waiting_tokens_limit"]),
            _number(one["batch_sequences"]),
            _number(one["batch_tokens"]),
        )
    if len(replicas) > MOST_REPLICAS:
        table.caption = f"and {len(replicas) - MOST_REPLICAS} more"
    return table


def _filled(now: float | None, limit: float | None) -> RenderableType:
    """Draw a gauge as a bar and a share of its limit."""
    if now is None or not limit:
        return _number(now)
    filled = Table.grid(padding=(0, 1))
    filled.add_column(width=BAR_CELLS)
    filled.add_column(width=len("100%"), justify="right")
    filled.add_row(ProgressBar(total=limit, completed=now, width=BAR_CELLS), f"{now / limit:.0%}")
    return filled


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True, vertical="bottom")
    for name in numbers:
        table.add_column(name, no_wrap=True, justify="right", vertical="bottom")
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
