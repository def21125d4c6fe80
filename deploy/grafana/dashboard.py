"""Write rows.py as Grafana's Classic JSON: `python deploy/grafana/dashboard.py`.

It writes two dashboards beside itself, the same bytes each time:

    headlight.json        the service
    headlight-ray.json    what Ray says of its cluster, for those that run one
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rows import RAY_ROWS, RELEASE, ROWS, SERVICE, Panel

Rows = Mapping[str, Sequence[Panel]]

SCHEMA = 41  # Classic JSON of Grafana 11.6; later ones read it
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 24, 8  # of the grid, of a panel


def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard by its file's name."""
    service = "Headlight: objectives, traffic, latency, saturation and what runs."
    cluster = "What Ray says of the cluster that Headlight runs on: replicas, controller, nodes."
    replica = {"replica": f"label_values(headlight_ready{{{SERVICE}}}, replica)"}
    return {
        "headlight.json": dashboard("headlight", "Headlight", service, ROWS, replica),
        "headlight-ray.json": dashboard("headlight-ray", "Headlight on Ray", cluster, RAY_ROWS, {}),
    }


def dashboard(
    uid: str, title: str, description: str, rows: Rows, more: Mapping[str, str]
) -> dict[str, Any]:
    """A dashboard as Grafana imports it.

    Args:
        more: variables beyond those of every dashboard, by name, each with its query.
    """
    return {
        "annotations": {"list": []},
        "description": description,
        "editable": False,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "panels": list(placed(rows)),
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": ["headlight"],
        "templating": {"list": variables(more)},
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "title": title,
        "uid": uid,
    }


def variables(more: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a reader chooses at the top: the datasource, and what of it."""
    ours = 'job=~"headlight.*"'
    asked = {
        "namespace": f"label_values(up{{{ours}}}, namespace)",
        "release": f'label_values(up{{{ours}, namespace=~"$namespace"}}, release)',
        "job": f"label_values(up{{{RELEASE}, {ours}}}, job)",
        "instance": f'label_values(up{{{RELEASE}, job=~"$job"}}, instance)',
        **more,
    }
    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "skipUrlSync": False,
        "multi": False,
        "includeAll": False,
    }
    return [source] + [
        {
            "name": name,
            "label": name.title(),
            "type": "query",
            "datasource": DATASOURCE,
            "query": query,
            "refresh": 2,  # with the time range too
            "sort": 1,
            "multi": True,
            "includeAll": True,
            # without Kubernetes, series have neither namespace nor release
            "allValue": ".*" if name in ("namespace", "release") else ".+",
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "skipUrlSync": False,
        }
        for name, query in asked.items()
    ]


def placed(rows: Rows) -> Iterator[dict[str, Any]]:
    """Every row and panel with its number and its place, left to right, top to bottom."""
    number, top = 0, 0
    for title, panels in rows.items():
        number += 1
        yield {
            "collapsed": False,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            "id": number,
            "panels": [],
            "title": title,
            "type": "row",
        }
        top, left = top + 1, 0
        for panel in panels:
            number += 1
            if left + panel.width > WIDTH:
                top, left = top + HEIGHT, 0
            place = {"h": HEIGHT, "w": panel.width, "x": left, "y": top}
            yield {"gridPos": place, "id": number, **drawn(panel)}
            left += panel.width
        top += HEIGHT


def drawn(panel: Panel) -> dict[str, Any]:
    """A panel without its place."""
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.bounds:
        defaults["min"], defaults["max"] = panel.bounds
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 30 if panel.stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
    return {
        "datasource": DATASOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": [
            asked(panel.kind, number, legend, query)
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
        "title": panel.title,
        "transformations": TABLE if panel.kind == "table" else [],
        "transparent": False,
        "type": panel.kind,
    }


def asked(kind: str, number: int, legend: str, query: str) -> dict[str, Any]:
    """One query of a panel."""
    return {
        "datasource": DATASOURCE,
        "expr": query,
        "format": {"heatmap": "heatmap", "table": "table"}.get(kind, "time_series"),
        "instant": kind in ("stat", "table"),
        "legendFormat": legend,
        "range": kind not in ("stat", "table"),
        "refId": chr(ord("A") + number),
    }


TABLE = [
    {
        "id": "organize",
        "options": {
            "excludeByName": dict.fromkeys(
                ("Time", "Value", "__name__", "job", "namespace", "release", "instance"), True
            )
        },
    }
]

OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scheme": "Oranges",
            "steps": 64,
        },
        "legend": {"show": True},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": "s"},
    },
    "table": {"cellHeight": "sm", "frameIndex": 0, "showHeader": True},
}


if __name__ == "__main__":
    for name, tree in dashboards().items():
        text = json.dumps(tree, indent=2, sort_keys=True) + "\n"
        Path(__file__).with_name(name).write_text(text)
