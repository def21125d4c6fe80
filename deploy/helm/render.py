"""Write the parts of the chart that follow from the code: `python deploy/helm/render.py`.

headlight/files/ray.yaml        what Ray starts with, and the numbers behind it
headlight/values.schema.json    the settings of the service, and Kubernetes' own objects
headlight/README.md             the table of values, from the comments of values.yaml

`python deploy/helm/render.py --kuberay FOLDER` writes the chart with its default values for KubeRay
instead, for kubectl, where there is no Helm.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import yaml

from service.api import ROUTES
from service.cluster import haproxy, ingress
from service.cluster.model_settings import OWN
from service.observe.families import METRICS_PATH
from service.tables.settings import BINARY_FACTOR, Settings

HERE = Path(__file__).parent
CHART = HERE / "headlight"
MONITORING = HERE / "headlight-monitoring"
ENGINE = HERE / "engine.py"

# Where the image has our wrapper of HAProxy; Ray asks for the whole path
WRAPPER = f"/opt/headlight/bin/{ingress.WRAPPER}"
DRAIN_SECONDS = 25  # while a stopping replica stays reachable
# What the chart says elsewhere, or what no pod may have otherwise
ELSEWHERE = {
    *("model", "device", "threads", "replicas", "min_replicas", "max_replicas", "other_replicas"),
    *("host", "port", "ingress", "address", "log_to_stderr"),
    *("api_keys", "api_keys_file", "tls_cert", "tls_key"),
}
# What one HAProxy does alike for all models that it carries
SHARED = {"deadline_seconds", "drain_seconds", "keep_alive_seconds"}
KUBERNETES = "1.37"  # of its own objects in values.schema.json
OBJECTS = "io.k8s."
TABLE = "| value | default | |\n|---|---|---|\n"


def variables() -> str:
    """Return files/ray.yaml: the chart works out again what its values change."""
    settings = Settings(drain_seconds=DRAIN_SECONDS)
    found = ingress.cluster_variables(settings) | {ingress.PROGRAM: WRAPPER}
    # HAProxy's counts for Prometheus, which alone the network policies let there
    found |= {haproxy.METRICS_HOST_VARIABLE: "0.0.0.0", "RAY_SERVE_HAPROXY_METRICS_PORT": "9101"}
    del found["RAY_AUTH_MODE"]  # KubeRay's own, with the token
    told = {
        "version": metadata.version("ray"),
        "variables": found,
        "spare_requests": ingress.SPARE_REQUESTS,
        "settings": {
            "drain_seconds": settings.drain_seconds,
            "deadline_seconds": settings.deadline_seconds,
            "keep_alive_seconds": settings.keep_alive_seconds,
            "max_waiting_requests": settings.max_waiting_requests,
            "max_body_bytes": settings.max_body_bytes,
            "binary": BINARY_FACTOR,
        },
        "paths": paths(),
        "own": sorted(OWN - ELSEWHERE),
    }
    return "# Made by deploy/helm/render.py\n" + yaml.safe_dump(told, sort_keys=False, width=100)


def paths() -> list[str]:
    """Return how each path of the API but its metrics begins: what outside clients may ask."""
    first = {row.path.split("/")[1] for row in ROUTES}
    return sorted(first - {"", METRICS_PATH.strip("/")})


def schema() -> str:
    """Return values.schema.json with the settings and Kubernetes' objects as they are."""
    path = CHART / "values.schema.json"
    whole = json.loads(path.read_text())
    own = dict(settings())
    whole["properties"]["settings"] = closed(own)
    whole["definitions"]["modelSettings"] = closed(
        {name: field for name, field in own.items() if name not in SHARED}
    )
    kept = {name: each for name, each in whole["definitions"].items() if OBJECTS not in name}
    whole["definitions"] = kept
    objects = dict(sorted(kubernetes(json.dumps(whole)).items()))
    whole["definitions"] = kept | dict.fromkeys(objects)
    text = json.dumps(whole, indent=2) + "\n"
    for name, each in objects.items():  # a line each
        text = text.replace(f'"{name}": null', f'"{name}": {json.dumps(each)}')
    return text


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """Return an object with these properties and no other."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def kubernetes(text: str) -> dict[str, dict[str, Any]]:
    """Return Kubernetes' definitions that a schema refers to, and those that they refer to."""
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema"
    file = folder / f"v{KUBERNETES}.0-local-strict" / "_definitions.json"
    known = json.loads(file.read_text())["$defs"]
    found: dict[str, dict[str, Any]] = {}
    wanted = [text]
    while wanted:
        for name in re.findall(r'"#/definitions/(io\.k8s\.[^"]+)"', wanted.pop()):
            if name not in found:
                found[name] = plain(known[name])
                wanted.append(json.dumps(found[name]))
    return found


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a value must be, undescribed; null is no value, since Helm takes it out."""
    kept = {name: schema[name] for name in ("required", "enum") if name in schema}
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("$defs", "definitions")}
    if "oneOf" in schema:  # a quantity, or a port by number or name
        return {"type": [part["type"][0] for part in schema["oneOf"]]}
    if "type" in schema:
        types = schema["type"]
        kept["type"] = types if isinstance(types, str) else types[0]
    if "properties" in schema:
        kept["properties"] = {name: plain(each) for name, each in schema["properties"].items()}
    for name in ("items", "additionalProperties"):
        if name in schema:
            each = schema[name]
            kept[name] = plain(each) if isinstance(each, dict) else each
    return kept


def settings() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each setting that values may have, and what it may be."""
    for name, field in Settings.model_json_schema()["properties"].items():
        if name in ELSEWHERE:
            continue
        part = field.pop("anyOf", [{}])[0]  # the other is null: not given
        kept = field | part
        yield name, {key: kept[key] for key in sorted(kept) if key not in ("default", "title")}


def page() -> str:
    """Return README.md with its table."""
    path = CHART / "README.md"
    before = path.read_text().partition(TABLE)[0]
    rows = "".join(
        f"| `{name}` | `{json.dumps(default)}` | {comment} |\n"
        for name, default, comment in values()
    )
    return before + TABLE + rows


def values() -> Iterator[tuple[str, Any, str]]:
    """Yield each value of values.yaml: its name, default and comment."""
    text = (CHART / "values.yaml").read_text()
    yield from leaves("", yaml.compose(text, yaml.SafeLoader), text.splitlines())


def leaves(prefix: str, node: yaml.Node, lines: list[str]) -> Iterator[tuple[str, Any, str]]:
    """Yield the values below a mapping; a mapping with a comment is one value."""
    for key, value in node.value:
        comment = lines[key.start_mark.line].partition(" # ")[2]
        name = prefix + key.value
        if comment or not isinstance(value, yaml.MappingNode):
            loader = yaml.SafeLoader("")
            yield name, loader.construct_object(value, deep=True), comment
        else:
            yield from leaves(f"{name}.", value, lines)


def rendered(chart: Path = CHART, **cases: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what Helm makes of each set of values."""
    asked = json.dumps({"chart": str(chart), "cases": cases})
    command = [sys.executable, ENGINE]
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


def manifests() -> dict[str, str]:
    """Render the chart with its default values for KubeRay, by the files' names.

    Raises:
        ValueError: Helm refuses the default values.
    """
    answer = rendered(cluster={"kind": "RayService"})["cluster"]
    if "refused" in answer:
        raise ValueError(answer["refused"])
    return {
        name: text.lstrip()
        for name, text in answer["files"].items()
        if name.endswith(".yaml") and text.strip()
    }


def main() -> None:
    """Write what the chart takes from the code, or the chart's manifests into a folder."""
    parser = argparse.ArgumentParser(description="Write what follows from the code and the chart.")
    parser.add_argument("--kuberay", type=Path, metavar="FOLDER", help="write manifests there")
    folder = parser.parse_args().kuberay
    if folder is None:
        (CHART / "files" / "ray.yaml").write_text(variables())
        (CHART / "values.schema.json").write_text(schema())
        (CHART / "README.md").write_text(page())
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in manifests().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
