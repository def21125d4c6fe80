"""The chart with its default values, as KubeRay's operator gets it."""

import runpy
from functools import cache
from pathlib import Path

RENDER = Path(__file__).parent.parent / "deploy" / "helm" / "render.py"


@cache
def manifests() -> dict[str, str]:
    """Render the chart, by the names of its files."""
    rendered: dict[str, str] = runpy.run_path(str(RENDER))["manifests"]()
    return rendered
