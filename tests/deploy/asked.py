"""What rendered objects have others ask: a kubelet, a Prometheus, KubeRay, a client from outside.

Each with the headers that it really sends, and the name by which it knows the service.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from service.api import ROUTES
from service.shapes.call import Route

SERVE, POD = 8000, "10.244.1.7"  # the service's port; an address as pods have them
PROBE = {"User-Agent": "kube-probe/1.37", "Accept": "*/*", "Connection": "close"}
# Prometheus 3.13, scrape/scrape.go: acceptHeader, UserAgent, and what scrapes always have
SCRAPE = {
    "User-Agent": "Prometheus/3.13.1",
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "4",
}
DISCOVERY = {  # prometheus/discovery/http
    "User-Agent": "Prometheus/3.13.1",
    "Accept": "application/json",
    "X-Prometheus-Refresh-Interval-Seconds": "10",
}
OPERATOR = {"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"}
PROXIED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "X-Real-IP": "10.0.0.1"}
# ray-operator/controllers/ray/common/pod.go of KubeRay 1.7: a container without probes gets this
# one from Ray 2.53 on; and the operator asks the head whether its HAProxy lives
KUBERAYS_PROBE, KUBERAYS_QUESTION = ("/api/healthz", 52365), ("/-/healthz", SERVE)


FILES = {row.path for row in ROUTES if row.path.startswith("/page/")} - {"/page/main.js"}  # alike


class Ask(NamedTuple):
    """One question.

    Args:
        port: of a pod; SERVE also where it comes by the Service.
        host: of the header Host.
        keyed: whether it has the key that the Secret of Prometheus holds, or a client's own.
    """

    by: str
    method: str
    path: str
    port: int
    host: str
    headers: dict[str, str]
    keyed: bool = False


def asks(documents: list[dict[str, Any]]) -> Iterator[Ask]:
    """All that the objects of a release have others ask."""
    for one in documents:
        spec = one.get("spec", {})
        match one["kind"]:
            case "Deployment":
                yield from of_containers(spec["template"])
            case "RayService":
                cluster = spec["rayClusterConfig"]
                for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                    yield from of_containers(group["template"])
                path, port = KUBERAYS_QUESTION
                yield Ask("operator", "GET", path, port, f"{POD}:{port}", OPERATOR)
            case "ScrapeConfig":
                yield from of_scrape_config(spec)
            case "ServiceMonitor" | "PodMonitor":
                for each in spec.get("endpoints", spec.get("podMetricsEndpoints")):
                    at = relabelled(each["port"], each["relabelings"])
                    yield scrape(each.get("path", "/metrics"), at, each)
            case "Ingress" | "HTTPRoute":
                yield from of_route(one)


def of_containers(template: dict[str, Any]) -> Iterator[Ask]:
    """What a kubelet asks of a pod's containers that are ours."""
    for each in template["spec"]["containers"]:
        if each["name"] in ("headlight", "ray-head", "ray-worker"):
            probes = [each[name] for name in each if name.endswith("Probe")]
            if not probes and each["name"].startswith("ray-"):
                path, port = KUBERAYS_PROBE
                yield Ask("kubelet", "GET", path, port, f"{POD}:{port}", PROBE)
            for probe in probes:
                if "httpGet" in probe:
                    assert probe["httpGet"].keys() == {"path", "port"}  # http, by the pod's address
                    path, port = probe["httpGet"]["path"], probe["httpGet"]["port"]
                    yield Ask("kubelet", "GET", path, port, f"{POD}:{port}", PROBE)
                else:
                    assert probe["tcpSocket"] == {"port": SERVE}


def of_scrape_config(spec: dict[str, Any]) -> Iterator[Ask]:
    """What Prometheus asks by a ScrapeConfig."""
    path = spec.get("metricsPath", "/metrics")
    for static in spec.get("staticConfigs", ()):
        yield from (scrape(path, target, spec) for target in static["targets"])
    for found in spec.get("httpSDConfigs", ()):
        url = urlsplit(found["url"])
        keyed = "authorization" in found
        yield Ask("discovery", "GET", url.path, SERVE, url.netloc, DISCOVERY, keyed)
        # and each replica that this lists, past HAProxy, as deploy/prometheus/replicas.yml does
        yield scrape("/metrics?scope=replica", f"{POD}:30000", spec)
    for _ in spec.get("kubernetesSDConfigs", ()):
        rules = spec["relabelings"]
        (name,) = (
            rule["regex"]
            for rule in rules
            if rule.get("sourceLabels") == ["__meta_kubernetes_pod_container_port_name"]
        )
        yield scrape(path, relabelled(name, rules), spec)


def relabelled(port: str, rules: list[dict[str, Any]]) -> str:
    """The address that Prometheus asks, of a container's port by name."""
    address = f"{POD}:{ {'serve': SERVE, 'metrics': 8080}[port] }"
    for rule in rules:
        if rule.get("targetLabel") == "__address__":
            pattern = rule.get("regex", "(.*)")
            address = re.sub(f"^{pattern}$", rule["replacement"].replace("$", "\\"), address)
    return address


def scrape(path: str, address: str, said: dict[str, Any]) -> Ask:
    """A scrape of an address."""
    port = int(address.rpartition(":")[2])
    return Ask("prometheus", "GET", path, port, address, SCRAPE, "authorization" in said)


def of_route(one: dict[str, Any]) -> Iterator[Ask]:
    """What clients from outside may ask: each route of the API that is led to the service."""
    spec = one["spec"]
    hosts = spec.get("hostnames") or [spec["rules"][0].get("host") or "any.example"]
    for rule in spec["rules"]:
        paths = [path["path"] for path in rule["http"]["paths"]] if "http" in rule else []
        paths += [match["path"]["value"] for match in rule.get("matches", ())]
        prefixes = {path.removesuffix("/embed") for path in paths if path.endswith("/embed")}
        for prefix, host, row in product(prefixes, hosts, ROUTES):
            # below a prefix a model has a name that the chart does not know
            if row.path in FILES or (prefix and "{" in row.path):
                continue
            if leads(paths, prefix + row.path):
                method, path = row.method.upper(), prefix + named(row)
                yield Ask("client", method, path, SERVE, host.replace("*", "any"), PROXIED, True)


def leads(paths: list[str], path: str) -> bool:
    """Whether one of the paths, or a folder of theirs, is that path."""
    return any(path == each or path.startswith(f"{each}/") for each in paths)


def named(row: Route) -> str:
    """A route's path, of the bundled model."""
    return re.sub(r"\{(model|id)\}", "all-MiniLM-L6-v2", row.path).replace("{version}", "1")


def curl(notes: str) -> tuple[str, dict[str, str], str]:
    """The command that NOTES.txt gives: URL, headers and body."""
    command = re.sub(r"\\\n\s*", " ", notes[notes.index("curl ") :])
    headers = dict(each.split(": ", 1) for each in re.findall(r"-H ['\"](.*?)['\"](?= )", command))
    (body,) = re.findall(r"-d '(.*)'", command)
    return command.split()[1], headers, body


def listed(documents: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Each model of a release: the path below which it answers, and its own settings."""
    for one in documents:
        if one["kind"] == "RayService":
            serve = yaml.safe_load(one["spec"]["serveConfigV2"])
            return [
                (each["route_prefix"].rstrip("/"), each["args"]) for each in serve["applications"]
            ]
        if one["kind"] == "ConfigMap":
            models = yaml.safe_load(one["data"]["models.yaml"])["models"]
            names = [each.get("served_model_name", each["model"]) for each in models]
            paths = [f"/{name.rpartition('/')[2].lower()}" for name in names]
            return [("", models[0]), *zip(paths[1:], models[1:], strict=True)]
    return [("", {})]
