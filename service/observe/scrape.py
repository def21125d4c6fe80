"""Joins the metrics of several replicas into one page.

Every replica's samples carry its own `replica` label, so nothing is added up; but the formats
require a family's HELP and TYPE once, and its samples together.

Source: Prometheus text exposition format 0.0.4; OpenMetrics 1.0.0, which ends in `# EOF`.
"""

# Metrics of the joined page itself
INCOMPLETE_GAUGE = (
    b"# HELP headlight_scrape_incomplete Whether a replica's metrics are missing from this page.\n"
    b"# TYPE headlight_scrape_incomplete gauge\n"
    b"headlight_scrape_incomplete %d\n"
)
EXPECTED_GAUGE = (
    b"# HELP headlight_replicas_expected Replicas that run or start, as Ray's controller counts.\n"
    b"# TYPE headlight_replicas_expected gauge\n"
    b"headlight_replicas_expected %d\n"
)
EOF = b"# EOF\n"  # ends a page of OpenMetrics


def join_pages(
    texts: list[bytes], incomplete: bool, openmetrics: bool = False, expected: int | None = None
) -> bytes:
    r"""Merge the metrics pages of replicas; add whether one is missing, and how many are expected.

    Families and samples stand in order of appearance.

    Args:
        texts: the page of each replica.
        incomplete: whether a replica's page is missing.
        openmetrics: whether the pages are OpenMetrics, not Prometheus text.
        expected: how many replicas there should be, if that is known.

    >>> print(join_pages([b'# TYPE a gauge\na{r="1"} 1\n', b'# TYPE a gauge\na{r="2"} 2\n'],
    ...            False).decode().partition("# HELP")[0])
    # TYPE a gauge
    a{r="1"} 1
    a{r="2"} 2
    <BLANKLINE>
    """
    headers: dict[bytes, dict[bytes, None]] = {}  # family -> its comment lines, each once
    samples: dict[bytes, list[bytes]] = {}
    for text in texts:
        family = b""
        for line in text.split(b"\n"):
            if line.startswith((b"# HELP ", b"# TYPE ", b"# UNIT ")):
                family = line.split(b" ", 3)[2]
                headers.setdefault(family, {}).setdefault(line)
            elif line and not line.startswith(b"#"):
                samples.setdefault(family, []).append(line)
    families = (
        line
        for family in dict.fromkeys([*headers, *samples])
        for line in [*headers.get(family, ()), *samples.get(family, ())]
    )
    page = b"".join(line + b"\n" for line in families) + INCOMPLETE_GAUGE % incomplete
    if expected is not None:
        page += EXPECTED_GAUGE % expected
    return page + EOF if openmetrics else page
