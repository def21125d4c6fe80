"""A running service's current activity on one screen: `headlight top`.

Two pages of its GET /metrics tell what happened between them: counters become rates, and
histograms become quantiles, linear inside a bucket as Prometheus' histogram_quantile has them.
Names are given without their `headlight_`. Scrapes are left out: an idle service would show
nothing else. What a service does not publish is shown as `-`.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headlight_client.call import authorization
from service.commands.terminal import Failed
from service.observe.families import SCRAPE
from service.observe.metrics import samples

TIMEOUT_SECONDS = 5.0

Labels = tuple[tuple[str, str], ...]  # sorted by name
MOST_ROUTES, MOST_REPLICAS = 5, 8  # rows of a table, so that all fits a screen of 24 lines
BAR_CELLS = 5
WAITING = [f"waiting_{what}{limit}" for what in ("requests", "tokens") for limit in ("", "_limit")]

Figures = Mapping[str, Any]  # by name; see `figures`


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape: when it was made (seconds, any clock), and each series' value by its labels."""

    at: float
    series: Mapping[str, Mapping[Labels, float]]


def read(url: str, key: str | None) -> Page:
    """Scrape a service.

    Raises:
        Failed: there is no service, or it refused; the message says why.
    """
    try:
        headers = authorization(key or None)
        answer = httpx.get(f"{url.rstrip('/')}/metrics", headers=headers, timeout=TIMEOUT_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Failed(f"no answer from {url}: {error}") from error
    if not answer.is_success:
        raise Failed(f"{url}/metrics answered {answer.status_code}")
    try:
        return page(answer.text, time.monotonic())
    except ValueError as error:
        raise Failed(f"{url}/metrics is not a page of metrics: {error}") from error


def page(text: str, at: float) -> Page:
    """Read a page of metrics that was scraped at a time."""
    series: dict[str, dict[Labels, float]] = defaultdict(dict)
    for name, labels, value in samples(text):
        if labels.get("route") != SCRAPE:
            series[name][tuple(sorted(labels.items()))] = value
    return Page(at, series)


@dataclass(frozen=True, slots=True)
class Interval:
    """The changes between two pages of one service."""

    before: Page
    after: Page

    def rates(self, name: str, label: str = "", **only: str) -> dict[str, float]:
        """Return a counter's increase per second for each value of a label.

        A series that is new began at 0, since its replica is new or nothing was counted.
        """
        seconds = self.after.at - self.before.at
        old = self.before.series.get(f"headlight_{name}", {})
        return self._sums(name, label, only, lambda at, now: (now - old.get(at, 0.0)) / seconds)

    def gauges(self, name: str, label: str = "", **only: str) -> dict[str, float]:
        """Return a gauge's sum for each value of a label, as it is now."""
        return self._sums(name, label, only, lambda _, now: now)

    def rate(self, name: str, **only: str) -> float | None:
        """Return a counter's increase per second; None when there is no such counter."""
        return self.rates(name, **only).get("")

    def quantile(self, name: str, share: float, **only: str) -> float | None:
        """Return the value below which a share of the observations lay; None without any."""
        buckets = self.rates(f"{name}_bucket", "le", **only)
        bounds = sorted((float(bound), count) for bound, count in buckets.items())
        if not bounds or bounds[-1][1] <= 0:
            return None
        rank = share * bounds[-1][1]
        low, below = 0.0, 0.0
        for bound, count in bounds:
            if count >= rank and count > below:
                inside = (rank - below) / (count - below)
                return low if math.isinf(bound) else low + (bound - low) * inside
            low, below = (low if math.isinf(bound) else bound), count
        return low

    def mean(self, name: str, **only: str) -> float | None:
        """Return the mean of a histogram's observations; None without any."""
        count = self.rate(f"{name}_count", **only)
        return (self.rate(f"{name}_sum", **only) or 0.0) / count if count else None

    def _sums(
        self,
        name: str,
        label: str,
        only: Mapping[str, str],
        value: Callable[[Labels, float], float],
    ) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for labels, now in self.after.series.get(f"headlight_{name}", {}).items():
            named = dict(labels)
            if only.items() <= named.items():
                sums[named.get(label, "")] += value(labels, now)
        return sums


def intervals(url: str, key: str | None, period: float) -> Iterator[Interval | Failed]:
    """Yield what happened in each period from now; where no page comes, why.

    Raises:
        Failed: not even a first page came.
    """
    before = read(url, key)
    while True:
        time.sleep(period)
        try:
            after = read(url, key)
        except Failed as error:
            yield error
        else:
            yield Interval(before, after)
            before = after


def screens(url: str, key: str | None, period: float) -> Iterator[Group]:
    """Yield what to show every `period` seconds; while no page comes, the last screen and why.

    Raises:
        Failed: not even a first page came.
    """
    shown = Group()
    for seen in intervals(url, key, period):
        if isinstance(seen, Failed):
            yield Group(Text(f"{seen}; retrying every {period:g} s", style="bold"), shown)
        else:
            shown = screen(seen)
            yield shown


def figures(interval: Interval) -> dict[str, Any]:
    """Gather the figures of every route, stage and replica; None where nothing is published.

    Times are in seconds, rates are per second, `waiting` is now.
    """
    models = interval.after.series.get("headlight_model_info", {})
    facts = dict(next(iter(models), ()))
    routes = interval.rates("requests_total", "route")
    stages = interval.rates("stage_duration_seconds_sum", "stage")
    ready = interval.gauges("ready", "replica")
    return {
        "seconds": interval.after.at - interval.before.at,
        **{name: facts.get(name) for name in ("model", "dtype", "device")},
        "answers": interval.rates("requests_total", "code"),
        "tokens": interval.rate("tokens_total"),
        "turned_away": interval.rate("shed_total"),
        "in_flight": interval.gauges("requests_in_flight").get(""),
        "routes": {
            route: {"requests": rate, **_quantiles(interval, "request", route=route)}
            for route, rate in routes.items()
        },
        "stages": {
            stage: {"seconds": rate, **_quantiles(interval, "stage", stage=stage)}
            for stage, rate in stages.items()
        },
        "replicas_expected": interval.gauges("replicas_expected").get(""),
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
        **{gauge: interval.gauges(gauge, replica=name).get("") for gauge in WAITING},
        "batch_sequences": interval.mean("batch_sequences", replica=name),
        "batch_tokens": interval.mean("batch_tokens", replica=name),
    }


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
