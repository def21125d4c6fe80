"""Writes schemas/: what others' operators accept, as strict JSON Schemas of our own size.

    python tests/deploy/crds.py rayservices.yaml scrapeconfigs.yaml ...

Each argument is a CustomResourceDefinition as its project publishes it (schemas/README.md says
where). The API server drops a key that it does not know; here such a key is an error.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "schemas"
VERSIONS = {  # of which kind we write which
    "RayService": "v1",
    "ScrapeConfig": "v1alpha1",
    "ServiceMonitor": "v1",
    "PodMonitor": "v1",
    "PrometheusRule": "v1",
    "HTTPRoute": "v1",
    "ScaledObject": "v1alpha1",
}
KEPT = {"type", "enum", "required", "pattern", "minimum", "maximum", "minLength", "maxLength"}
KEPT |= {"minItems", "maxItems"}
METADATA = {
    "type": "object",
    "required": ["name", "namespace"],
    "additionalProperties": False,
    "properties": {
        **{name: {"type": "string"} for name in ("name", "namespace")},
        **{
            name: {"type": "object", "additionalProperties": {"type": "string"}}
            for name in ("labels", "annotations")
        },
    },
}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """What a value must be, without descriptions, defaults and rules in CEL."""
    kept = {name: value for name, value in schema.items() if name in KEPT}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "pattern" in kept:
        kept["pattern"] = kept["pattern"].replace("(?i)", "")  # Go's place for it; none is ours
    if "items" in schema:
        kept["items"] = strict(schema["items"])
    if "properties" in schema:
        parts = schema["properties"].items()
        kept["properties"] = {name: strict(part) for name, part in parts}
        kept["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = strict(schema["additionalProperties"])
    return kept


def shared(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, in which what stands in several places stands once, under $defs."""
    places: dict[str, int] = {}
    definitions: dict[str, Any] = {}

    def count(part: Any) -> None:
        text = json.dumps(part, sort_keys=True)
        places[text] = places.get(text, 0) + 1
        if places[text] == 1:
            for inner in children(part):
                count(inner)

    def replaced(part: Any, whole: bool = False) -> Any:
        text = json.dumps(part, sort_keys=True)
        if not whole and len(text) > 60 and places[text] > 1:
            name = names.setdefault(text, str(len(names)))
            if name not in definitions:
                definitions[name] = None  # its place, in the order of names
                definitions[name] = replaced(part, whole=True)
            return {"$ref": f"#/$defs/{name}"}
        result = dict(part)
        if "properties" in part:
            result["properties"] = {key: replaced(one) for key, one in part["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(part.get(key), dict):
                result[key] = replaced(part[key])
        return result

    names: dict[str, str] = {}
    count(schema)
    return {**replaced(schema, whole=True), "$defs": definitions}


def children(part: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas directly inside one."""
    inner = [part.get("items"), part.get("additionalProperties")]
    return [*part.get("properties", {}).values(), *(one for one in inner if isinstance(one, dict))]


def written(definition: dict[str, Any]) -> tuple[str, str]:
    """A kind and its schema as text."""
    spec = definition["spec"]
    kind, group = spec["names"]["kind"], spec["group"]
    (version,) = (one for one in spec["versions"] if one["name"] == VERSIONS[kind])
    schema = strict(version["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    schema["properties"] |= {
        "apiVersion": {"enum": [f"{group}/{VERSIONS[kind]}"]},
        "kind": {"enum": [kind]},
        "metadata": METADATA,
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return kind, json.dumps(shared(schema), separators=(",", ":"), sort_keys=True) + "\n"


def main() -> None:
    """Write the schema of each definition."""
    for path in sys.argv[1:]:
        kind, text = written(yaml.load(Path(path).read_text(), yaml.CSafeLoader))
        (FOLDER / f"{kind.lower()}.json").write_text(text)


if __name__ == "__main__":
    main()
