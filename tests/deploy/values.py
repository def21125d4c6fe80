"""Sets of values for the chart: what it must render, and what it must refuse."""

from typing import Any

import pytest

DIGEST = f"sha256:{'0123456789abcdef' * 4}"

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "gpu": {"device": "cuda"},
    "volume": {"model": {"source": "pvc", "name": "minilm", "pvc": {"claimName": "models"}}},
    "hub": {
        "model": {"source": "hub", "name": "org/model@v1", "hub": {"secretName": "hub-token"}},
        "networkPolicy": {"dnsNamespace": "openshift-dns"},
    },
    "keys": {"apiKeys": {"secretName": "keys"}, "monitoring": {"secretName": "prometheus-key"}},
    "public metrics": {"apiKeys": {"secretName": "keys"}, "settings": {"public_metrics": True}},
    "redis": {
        "replicas": 3,
        "gcsFaultTolerance": {"redisAddress": "rediss://redis.db:6380", "secretName": "redis"},
    },
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "a.example",
            "tlsSecretName": "c",
        }
    },
    "route": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateway"}],
            "hostnames": ["a.example"],
        }
    },
    "autoscaling": {"autoscaling": {"enabled": True, "minReplicas": 2}, "maxReplicas": 7},
    "registry": {
        "image": {
            "registry": "registry.example:5000/team",
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
            "cpu": {"digest": DIGEST},
        }
    },
    "settings": {
        "settings": {
            "deadline_seconds": 130.5,
            "drain_seconds": 0,
            "max_waiting_requests": 1024,
            "max_body_bytes": 4194304,
            "max_source_connections": 13,
            "cors_origins": ["https://a.example"],
            "tracing": "https://collector.example/v1/traces",
        },
        "networkPolicy": {"extraEgress": [{"ports": [{"protocol": "TCP", "port": 4318}]}]},
    },
    "nothing": {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "monitoring": {"scrape": False, "rules": False, "dashboards": False},
        "workers": {"topologySpread": []},
    },
}
# Values by what they are refused with
REFUSED: dict[str, dict[str, Any]] = {
    "additional properties 'replica' not allowed": {"replica": 2},
    "additional properties 'prot' not allowed": {"settings": {"prot": 1}},
    "additional properties 'port' not allowed": {"settings": {"port": 9000}},
    "at '/settings/deadline_seconds': maximum: got 601, want 600": {
        "settings": {"deadline_seconds": 601}
    },
    "at '/image/cpu/digest': 'sha256:12' does not match pattern": {
        "image": {"cpu": {"digest": "sha256:12"}}
    },
    "at '/device': value must be one of 'cpu', 'cuda'": {"device": "gpu"},
    "at '/replicas': minimum: got 0, want 1": {"replicas": 0},
    "at '/workers/gpu/resources': missing property 'nvidia.com/gpu'": {
        "workers": {"gpu": {"resources": {"nvidia.com/gpu": None}}}
    },
    "at '/gcsFaultTolerance/redisAddress': 'redis' does not match pattern": {
        "gcsFaultTolerance": {"redisAddress": "redis"}
    },
    f"image: set a tag or a digest, not both: 1.2.3 and {DIGEST}": {
        "image": {"cuda": {"tag": "1.2.3", "digest": DIGEST}}
    },
    "replicas 5 must not be more than maxReplicas, which is 4": {"replicas": 5},
    "autoscaling.minReplicas 3 must not be more than maxReplicas, which is 2": {
        "autoscaling": {"enabled": True, "minReplicas": 3},
        "maxReplicas": 2,
    },
    "model.pvc.claimName: with model.source pvc, name an existing claim": {
        "model": {"source": "pvc"}
    },
    "model.name ../a: with model.source pvc, a folder of the volume, such as minilm": {
        "model": {"source": "pvc", "name": "../a", "pvc": {"claimName": "models"}}
    },
    "model.name all-MiniLM-L6-v2: with model.source hub, org/name or org/name@revision": {
        "model": {"source": "hub"}
    },
    "model.pvc.claimName models: set model.source to pvc": {
        "model": {"pvc": {"claimName": "models"}}
    },
    "model.hub.secretName token: set model.source to hub": {
        "model": {"hub": {"secretName": "token"}}
    },
    "workers.cpu.resources.cpu 2500m: a replica needs 3": {
        "workers": {"cpu": {"resources": {"cpu": "2500m"}}}
    },
    "workers.gpu.resources.cpu 1: a replica needs 2": {
        "device": "cuda",
        "workers": {"gpu": {"resources": {"cpu": 1}}},
    },
    "monitoring.secretName: with API keys, Prometheus needs a key": {
        "apiKeys": {"secretName": "keys"}
    },
    "networkPolicy.extraEgress: allow the way to settings.tracing": {
        "settings": {"tracing": "http://collector:4318/v1/traces"}
    },
    "at '/monitoring/runbooks': 'docs/runbooks' does not match pattern": {
        "monitoring": {"runbooks": "docs/runbooks"}
    },
    "httpRoute.parentRefs: name the gateway it belongs to": {"httpRoute": {"enabled": True}},
    "release name 1st: KubeRay wants a letter": {"release": "1st"},
}
every_case = pytest.mark.parametrize("case", CASES)
