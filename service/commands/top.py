"""What a running service does now, on one screen: `headlight top`.

What a service does not publish is shown as `-`.
"""

import time
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.commands.interval import Span, read

MOST_ROUTES, MOST_REPLICAS = 5, 8  # rows of a table, so that all fits a screen of 24 lines
BAR_CELLS = 5


def watch(url: str, key: str | None, interval: float, console: Console) -> None:
    """Show a service until Ctrl-C, anew every `interval` seconds.

    Raises:
        Unreachable: see `read`.
    """
    with Live(console=console, screen=True, auto_refresh=False) as live:
        before = read(url, key)
        while True:
            time.sleep(interval)
            after = read(url, key)
            live.update(screen(Span(before, after)), refresh=True)
            before = after


def once(url: str, key: str | None, interval: float, console: Console) -> None:
    """Show what a service did in one interval from now.

    Raises:
        Unreachable: see `read`.
    """
    before = read(url, key)
    time.sleep(interval)
    console.print(screen(Span(before, read(url, key))))


def screen(span: Span) -> Group:
    """One screenful."""
    beside = Table.grid(padding=(0, 3))
    beside.add_row(_routes(span), _stages(span))
    return Group(_title(span), "", _totals(span), "", beside, "", _replicas(span))


def _title(span: Span) -> Text:
    facts = next(iter(span.labels("model_info")), {})
    ready = span.gauges("ready", "replica")
    words = [facts.get("model", "-"), f"{facts.get('dtype', '-')} on {facts.get('device', '-')}"]
    return Text("   ".join([*words, f"{sum(map(bool, ready.values()))} of {len(ready)} ready"]))


def _routes(span: Span) -> Table:
    """Requests by route, the busiest first."""
    shown = _table("route", "requests/s", "p50", "p99")
    rates = span.rates("requests_total", "route")
    for route in sorted(rates, key=rates.__getitem__, reverse=True)[:MOST_ROUTES]:
        times = (span.quantile("request_duration_seconds", q, route=route) for q in (0.5, 0.99))
        shown.add_row(Text(route), _number(rates[route]), *map(_time, times))
    return shown


def _totals(span: Span) -> Table:
    """What is true of the service as a whole, two facts a line."""
    shown = Table.grid(padding=(0, 3))
    codes = span.rates("requests_total", "code")
    answered = "  ".join(f"{code}: {_number(codes[code])}" for code in sorted(codes) if codes[code])
    facts = {
        "answers/s": answered or "-",
        "tokens/s": _number(span.rate("tokens_total")),
        "turned away/s": _number(span.rate("shed_total")),
        "in flight": _number(_sum(span.gauges("requests_in_flight", ""))),
        "requests waiting": _number(_sum(span.gauges("waiting_requests", ""))),
        "tokens waiting": _number(_sum(span.gauges("waiting_tokens", ""))),
    }
    cells = [cell for name, said in facts.items() for cell in (Text(name, style="bold"), said)]
    for start in range(0, len(cells), 4):
        shown.add_row(*cells[start : start + 4])
    return shown


def _stages(span: Span) -> Table:
    """Where requests spend their time, in the order in which they are met."""
    shown = _table("stage", "share", "p50", "p99")
    seconds = span.rates("stage_seconds_total", "stage")
    whole = sum(seconds.values())
    for stage, spent in seconds.items():
        times = (span.quantile("stage_duration_seconds", q, stage=stage) for q in (0.5, 0.99))
        share = f"{spent / whole:.0%}" if whole else "-"
        shown.add_row(Text(stage), share, *map(_time, times))
    return shown


def _replicas(span: Span) -> Table:
    """One row for each replica: its speed, its queue against its limits, its batches."""
    speeds, batches = (
        ("requests\nper s", "tokens\nper s"),
        ("sequences\nper batch", "tokens\nper batch"),
    )
    shown = _table("replica", "ready", *speeds, "requests\nwaiting", "tokens\nwaiting", *batches)
    names = sorted(span.gauges("ready", "replica"))
    for name in names[:MOST_REPLICAS]:
        shown.add_row(
            Text(name),
            "yes" if span.gauges("ready", "replica", replica=name)[name] else "NO",
            _number(span.rate("requests_total", replica=name)),
            _number(span.rate("tokens_total", replica=name)),
            _filled(span, "waiting_requests", name),
            _filled(span, "waiting_tokens", name),
            _number(span.mean("batch_sequences", replica=name)),
            _number(span.mean("batch_tokens", replica=name)),
        )
    if len(names) > MOST_REPLICAS:
        shown.caption = f"and {len(names) - MOST_REPLICAS} more"
    return shown


def _filled(span: Span, name: str, replica: str) -> RenderableType:
    """A gauge as a bar and a share of its limit."""
    now = _sum(span.gauges(name, "", replica=replica))
    limit = _sum(span.gauges(f"{name}_limit", "", replica=replica))
    if now is None or not limit:
        return _number(now)
    filled = Table.grid(padding=(0, 1))
    filled.add_column(width=BAR_CELLS)
    filled.add_column(width=len("100%"), justify="right")
    filled.add_row(ProgressBar(total=limit, completed=now, width=BAR_CELLS), f"{now / limit:.0%}")
    return filled


def _table(first: str, *numbers: str) -> Table:
    shown = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    shown.add_column(first, no_wrap=True, vertical="bottom")
    for name in numbers:
        shown.add_column(name, no_wrap=True, justify="right", vertical="bottom")
    return shown


def _sum(found: Mapping[str, float]) -> float | None:
    return sum(found.values()) if found else None


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
