"""Renders and lints charts by Helm itself, which a process of its own runs: `python engine.py`.

It reads a JSON object from its input: the chart's folder, and values by the name of a case. It
writes one with, for each case, its files or why there are none, and what `helm lint` says. Helm is
written in Go, whose threads and signals have no place in the process of a test.
"""

import json
import sys
from typing import Any

import helm_python


def case(chart: helm_python.Chart, folder: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return what Helm makes of one set of values.

    Args:
        values: and among them, as `release` and `namespace`, those that are not headlight.
    """
    name, namespace = (values.pop(one, "headlight") for one in ("release", "namespace"))
    try:
        files = chart.render(values, name=name, namespace=namespace, is_install=True)
    except helm_python.HelmError as error:
        return {"refused": str(error)}
    said = helm_python.lint(folder, values, namespace=namespace, strict=True)["messages"]
    return {
        "files": {path.rpartition("/")[2]: text for path, text in files.items()},
        "lint": [f"{each['path']}: {each['error']}" for each in said if each["severity"] > 1],
    }


def main() -> None:
    """Answer what the input asks."""
    asked = json.load(sys.stdin)
    with helm_python.Chart.load(asked["chart"]) as chart:
        cases = asked["cases"].items()
        json.dump({name: case(chart, asked["chart"], values) for name, values in cases}, sys.stdout)


if __name__ == "__main__":
    main()
