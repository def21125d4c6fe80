"""What happened in a running service between two pages of its GET /metrics.

Counters become rates over the time between the pages, and histograms become quantiles of what was
observed in it. Names are given without their `headlight_`. Scrapes, ours and others', are left out:
an idle service would show nothing else.

Source: quantiles as Prometheus' histogram_quantile has them, linear inside a bucket.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

from headlight_client.call import authorization
from service.commands.terminal import Failed
from service.observe.families import SCRAPE
from service.observe.metrics import samples

TIMEOUT_SECONDS = 5.0

Labels = tuple[tuple[str, str], ...]  # sorted by name


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
    """What happened between two pages of one service."""

    before: Page
    after: Page

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each series that is there now."""
        return [dict(labels) for labels, _ in self._select(name, {})]

    def rates(self, name: str, label: str, **only: str) -> dict[str, float]:
        """Return a counter's increase per second for each value of a label.

        A series that is new began at 0, since its replica is new or nothing was counted.
        """
        seconds = self.after.at - self.before.at
        old = self.before.series.get(_full(name), {})
        rates: dict[str, float] = defaultdict(float)
        for labels, value in self._select(name, only):
            rates[dict(labels).get(label, "")] += (value - old.get(labels, 0.0)) / seconds
        return rates

    def rate(self, name: str, **only: str) -> float | None:
        """Return a counter's increase per second; None when there is no such counter."""
        rates = self.rates(name, "", **only)
        return sum(rates.values()) if rates else None

    def gauges(self, name: str, label: str, **only: str) -> dict[str, float]:
        """Return a gauge's sum for each value of a label, as it is now."""
        sums: dict[str, float] = defaultdict(float)
        for labels, value in self._select(name, only):
            sums[dict(labels).get(label, "")] += value
        return sums

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

    def _select(self, name: str, only: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
        for labels, value in self.after.series.get(_full(name), {}).items():
            if only.items() <= dict(labels).items():
                yield labels, value


def _full(name: str) -> str:
    return f"headlight_{name}"
