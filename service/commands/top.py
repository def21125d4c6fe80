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

from service.commands.encode import Unreachable
from service.commands.interval import Interval, read

MOST_ROUTES, MOST_REPLICAS = 5, 8  # rows of a table, so that all fits a screen of 24 lines
BAR_CELLS = 5


def intervals(url: str, key: str | None, period: float, once: bool) -> Iterator[Interval]:
    """Give what happened in each period from now: in one, or until Ctrl-C.

    Raises:
        Unreachable: see `read`.
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
        Unreachable: see `read`.
    """
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for shown in screens(url, key, period):
            live.update(shown, refresh=True)


def screens(url: str, key: str | None, period: float) -> Iterator[Group]:
    """What to show every `period` seconds; while no page comes, the last screen and why.

    Raises:
        Unreachable: not even a first page came.
    """
    before, shown = read(url, key), Group()
    while True:
        time.sleep(period)
        try:
            after = read(url, key)
        except Unreachable as error:
            yield Group(Text(f"{error}; asked again every {period:g} s", style="bold"), shown)
            continue
        shown = screen(Interval(before, after))
        yield shown
        before = after


def once(url: str, key: str | None, period: float, console: Console) -> None:
    """Show what a service did in one period from now.

    Raises:
        Unreachable: see `read`.
    """
    for seen in intervals(url, key, period, once=True):
        console.print(screen(seen))


def screen(interval: Interval) -> Group:
    """One screenful."""
    beside = Table.grid(padding=(0, 3))
    beside.add_row(_routes(interval), _stages(interval))
    return Group(_title(interval), "", _totals(interval), "", beside, "", _replicas(interval))


def figures(interval: Interval) -> dict[str, Any]:
    """The same for programs, every route and replica; None where nothing is published.

    Times are in seconds, rates are per second, `waiting` is now.
    """
    facts = next(iter(interval.labels("model_info")), {})
    codes, routes = (interval.rates("requests_total", label) for label in ("code", "route"))
    stages = interval.rates("stage_duration_seconds_sum", "stage")
    ready = interval.gauges("ready", "replica")
    return {
        "seconds": interval.after.at - interval.before.at,
        **{name: facts.get(name) for name in ("model", "dtype", "device")},
        "answers": codes,
        "tokens": interval.rate("tokens_total"),
        "turned_away": interval.rate("shed_total"),
        "in_flight": _sum(interval.gauges("requests_in_flight", "")),
        "routes": {
            route: {"requests": rate, **_quantiles(interval, "request", route=route)}
            for route, rate in routes.items()
        },
        "stages": {
            stage: {"seconds": rate, **_quantiles(interval, "stage", stage=stage)}
            for stage, rate in stages.items()
        },
        "replicas_expected": _sum(interval.gauges("replicas_expected", "")),
        "replicas": {name: _replica(interval, name, bool(ready[name])) for name in ready},
    }


def _quantiles(interval: Interval, what: str, **only: str) -> dict[str, float | None]:
    name = f"{what}_duration_seconds"
    return {f"p{share * 100:g}": interval.quantile(name, share, **only) for share in (0.5, 0.99)}


def _replica(interval: Interval, name: str, ready: bool) -> dict[str, Any]:
    """What a replica does, by the names of the screen."""
    return {
        "ready": ready,
        "requests": interval.rate("requests_total", replica=name),
        "tokens": interval.rate("tokens_total", replica=name),
        "waiting_requests": _sum(interval.gauges("waiting_requests", "", replica=name)),
        "waiting_tokens": _sum(interval.gauges("waiting_tokens", "", replica=name)),
        "batch_sequences": interval.mean("batch_sequences", replica=name),
        "batch_tokens": interval.mean("batch_tokens", replica=name),
    }


def _title(interval: Interval) -> Text:
    facts = next(iter(interval.labels("model_info")), {})
    ready = interval.gauges("ready", "replica")
    words = [facts.get("model", "-"), f"{facts.get('dtype', '-')} on {facts.get('device', '-')}"]
    there = max(len(ready), int(_sum(interval.gauges("replicas_expected", "")) or 0))
    return Text("   ".join([*words, f"{sum(map(bool, ready.values()))} of {there} ready"]))


def _routes(interval: Interval) -> Table:
    """Requests by route, the busiest first."""
    table = _table("route", "requests/s", "p50", "p99")
    rates = interval.rates("requests_total", "route")
    for route in sorted(rates, key=rates.__getitem__, reverse=True)[:MOST_ROUTES]:
        times = (interval.quantile("request_duration_seconds", q, route=route) for q in (0.5, 0.99))
        table.add_row(Text(route), _number(rates[route]), *map(_time, times))
    return table


def _totals(interval: Interval) -> Table:
    """What is true of the service as a whole, two facts a line."""
    table = Table.grid(padding=(0, 3))
    codes = interval.rates("requests_total", "code")
    answered = "  ".join(f"{code}: {_number(codes[code])}" for code in sorted(codes) if codes[code])
    facts = {
        "answers/s": answered or "-",
        "tokens/s": _number(interval.rate("tokens_total")),
        "turned away/s": _number(interval.rate("shed_total")),
        "in flight": _number(_sum(interval.gauges("requests_in_flight", ""))),
        "requests waiting": _number(_sum(interval.gauges("waiting_requests", ""))),
        "tokens waiting": _number(_sum(interval.gauges("waiting_tokens", ""))),
    }
    cells = [cell for name, value in facts.items() for cell in (Text(name, style="bold"), value)]
    for start in range(0, len(cells), 4):
        table.add_row(*cells[start : start + 4])
    return table


def _stages(interval: Interval) -> Table:
    """Where requests spend their time, in the order in which they are met."""
    table = _table("stage", "share", "p50", "p99")
    seconds = interval.rates("stage_duration_seconds_sum", "stage")
    whole = sum(seconds.values())
    for stage, value in seconds.items():
        times = (interval.quantile("stage_duration_seconds", q, stage=stage) for q in (0.5, 0.99))
        share = f"{value / whole:.0%}" if whole else "-"
        table.add_row(Text(stage), share, *map(_time, times))
    return table


def _replicas(interval: Interval) -> Table:
    """One row for each replica: its speed, its queue against its limits, its batches."""
    speeds, batches = (
        ("requests\nper s", "tokens\nper s"),
        ("sequences\nper batch", "tokens\nper batch"),
    )
    table = _table("replica", "ready", *speeds, "requests\nwaiting", "tokens\nwaiting", *batches)
    names = sorted(interval.gauges("ready", "replica"))
    for name in names[:MOST_REPLICAS]:
        table.add_row(
            Text(name),
            "yes" if interval.gauges("ready", "replica", replica=name)[name] else "NO",
            _number(interval.rate("requests_total", replica=name)),
            _number(interval.rate("tokens_total", replica=name)),
            _filled(interval, "waiting_requests", name),
            _filled(interval, "waiting_tokens", name),
            _number(interval.mean("batch_sequences", replica=name)),
            _number(interval.mean("batch_tokens", replica=name)),
        )
    if len(names) > MOST_REPLICAS:
        table.caption = f"and {len(names) - MOST_REPLICAS} more"
    return table


def _filled(interval: Interval, name: str, replica: str) -> RenderableType:
    """A gauge as a bar and a share of its limit."""
    now = _sum(interval.gauges(name, "", replica=replica))
    limit = _sum(interval.gauges(f"{name}_limit", "", replica=replica))
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


def _sum(values: Mapping[str, float]) -> float | None:
    return sum(values.values()) if values else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
