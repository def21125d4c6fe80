"""Writes what follows from the code and from the chart: `python deploy/helm/render.py`.

headlight/files/ray.yaml        what Ray starts with, and the numbers behind it
headlight/values.schema.json    the part `settings`: those of the service
headlight/README.md             the table of values, from the comments of values.yaml
../kuberay/                     the chart with its default values, for kubectl
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from service.cluster import haproxy, ingress
from service.settings import Settings

HERE = Path(__file__).parent
CHART, KUBERAY = HERE / "headlight", HERE.parent / "kuberay"
MONITORING = HERE / "headlight-monitoring"
ENGINE = HERE / "engine.py"

# Where the image has our wrapper of HAProxy; Ray asks for the whole path
WRAPPER = f"/opt/headlight/bin/{ingress.WRAPPER}"
DRAIN_SECONDS = 25  # while a stopping replica stays reachable
# What the chart says elsewhere, or what no pod may have otherwise
ELSEWHERE = {
    *("model", "device", "threads", "replicas", "min_replicas", "max_replicas"),
    *("host", "port", "ingress", "address", "insecure_cluster", "log_to_stderr"),
    *("api_keys", "api_keys_file"),
}
TABLE = "| value | default | |\n|---|---|---|\n"


def variables() -> str:
    """files/ray.yaml: the chart works out again what its values change."""
    settings = Settings(drain_seconds=DRAIN_SECONDS)
    found = ingress.clustered(settings) | {ingress.PROGRAM: WRAPPER}
    # HAProxy's counts for Prometheus, which alone the network policies let there
    found |= {haproxy.METRICS_HOST: "0.0.0.0", "RAY_SERVE_HAPROXY_METRICS_PORT": "9101"}
    del found["RAY_AUTH_MODE"]  # KubeRay's own, with the token
    told = {
        "version": metadata.version("ray"),
        "variables": found,
        "spare_requests": ingress.SPARE_REQUESTS,
        "settings": {
            "drain_seconds": settings.drain_seconds,
            "deadline_seconds": settings.deadline_seconds,
            "max_waiting_requests": settings.max_waiting_requests,
        },
    }
    return "# Made by deploy/helm/render.py\n" + yaml.safe_dump(told, sort_keys=False, width=100)


def schema() -> str:
    """values.schema.json with the settings as they are."""
    path = CHART / "values.schema.json"
    whole = json.loads(path.read_text())
    whole["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(settings()),
    }
    return json.dumps(whole, indent=2) + "\n"


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each setting that values may have, and what it may be."""
    for name, field in Settings.model_json_schema()["properties"].items():
        if name in ELSEWHERE:
            continue
        part = field.pop("anyOf", [{}])[0]  # the other is null: not given
        kept = field | part
        yield name, {key: kept[key] for key in sorted(kept) if key not in ("default", "title")}


def page() -> str:
    """README.md with its table."""
    path = CHART / "README.md"
    before = path.read_text().partition(TABLE)[0]
    rows = "".join(
        f"| `{name}` | `{json.dumps(default)}` | {comment} |\n"
        for name, default, comment in values()
    )
    return before + TABLE + rows


def values() -> Iterator[tuple[str, Any, str]]:
    """Each value of values.yaml: its name, default and comment."""
    text = (CHART / "values.yaml").read_text()
    yield from leaves("", yaml.compose(text, yaml.SafeLoader), text.splitlines())


def leaves(prefix: str, node: yaml.Node, lines: list[str]) -> Iterator[tuple[str, Any, str]]:
    """The values below a mapping; a mapping with a comment is one value."""
    for key, value in node.value:
        comment = lines[key.start_mark.line].partition(" # ")[2]
        name = prefix + key.value
        if comment or not isinstance(value, yaml.MappingNode):
            loader = yaml.SafeLoader("")
            yield name, loader.construct_object(value, deep=True), comment
        else:
            yield from leaves(f"{name}.", value, lines)


def rendered(chart: Path = CHART, **cases: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What Helm makes of each set of values."""
    asked = json.dumps({"chart": str(chart), "cases": cases})
    command = [sys.executable, ENGINE]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


def manifests() -> dict[str, str]:
    """deploy/kuberay/, by the files' names.

    Raises:
        ValueError: Helm refuses the default values.
    """
    said = "# deploy/helm/headlight with its default values; made by deploy/helm/render.py\n"
    answer = rendered(defaults={})["defaults"]
    if "refused" in answer:
        raise ValueError(answer["refused"])
    return {
        name: said + text.lstrip()
        for name, text in answer["files"].items()
        if name.endswith(".yaml") and text.strip()
    }


def main() -> None:
    """Write everything; the chart before what is rendered of it."""
    (CHART / "files" / "ray.yaml").write_text(variables())
    (CHART / "values.schema.json").write_text(schema())
    (CHART / "README.md").write_text(page())
    made = manifests()
    for path in KUBERAY.iterdir():
        path.unlink()
    for name, text in made.items():
        (KUBERAY / name).write_text(text)


if __name__ == "__main__":
    main()
