"""The chart with its default values, as KubeRay's operator gets it."""

import runpy
from functools import cache
from pathlib import Path
from typing import Any

RENDER = Path(__file__).parent.parent / "deploy" / "helm" / "render.py"


def rendered(**values: Any) -> dict[str, str]:
    """Render the chart with some values, by the names of its files."""
    files: dict[str, str] = runpy.run_path(str(RENDER))["rendered"](one=values)["one"]["files"]
    return files


@cache
def manifests() -> dict[str, str]:
    """Render the chart, by the names of its files."""
    rendered: dict[str, str] = runpy.run_path(str(RENDER))["manifests"]()
    return rendered
