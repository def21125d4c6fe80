"""Sets of values for the chart: what it must render, and what it must refuse."""

from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "helm" / "examples"
EXAMPLES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted(FOLDER.glob("*.yaml"))}
DAY1 = yaml.safe_load((Path(__file__).parent.parent / "kubernetes" / "values.yaml").read_text())
SERVED = "headlight-serve-svc.headlight.svc"  # the Service's name, by which Prometheus asks
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
NGINX = "nginx.ingress.kubernetes.io/proxy-"


def spread(role: str) -> dict[str, Any]:
    """Affinity that keeps pods of a role on nodes of their own."""
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"role": role}},
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


# With KubeRay
CASES: dict[str, dict[str, Any]] = {
    "cluster": {},
    "gpu": {"device": "cuda"},
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
            "keep_alive_seconds": 620,
            "drain_seconds": 0,
            "max_waiting_requests": 1024,
            "max_body_bytes": 4194304,
            "cors_origins": ["https://a.example"],
            "tracing": "https://collector.example/v1/traces",
        },
        "networkPolicy": {"extraEgress": [{"ports": [{"protocol": "TCP", "port": 4318}]}]},
    },
    "pods": {
        "serviceAccount": {"create": True, "annotations": {"cloud.example/role": "weights"}},
        "pods": {
            "annotations": {"example.com/owner": "search"},
            "labels": {"cost-centre": "17"},
            "extraEnv": [
                {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "envFrom": [{"secretRef": {"name": "more"}}],
            "extraVolumes": [{"name": "certificates", "configMap": {"name": "our-ca"}}],
            "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/ours"}],
            "initContainers": [{"name": "wait", "image": "busybox:1", "command": ["true"]}],
            "sidecars": [{"name": "logs", "image": "fluent-bit:4"}],
        },
        "head": {"affinity": spread("head"), "priorityClassName": "control"},
        "workers": {"cpu": {"affinity": spread("worker"), "priorityClassName": "serving"}},
    },
    "account": {"serviceAccount": {"name": "weights"}},
    **EXAMPLES,
    "part of a gpu": {
        "device": "cuda",
        "workers": {
            "gpu": {"resources": {"limits": {"nvidia.com/gpu": None, "nvidia.com/mig-1g.10gb": 1}}}
        },
    },
    "another cluster's": {
        "device": "cuda",
        "maxReplicas": 11,
        "workers": {"gpu": {"resources": {"limits": {"nvidia.com/gpu": None, "amd.com/gpu": 1}}}},
        "pods": {
            "runtimeClassName": "amd",
            "securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        },
    },
    "models": {
        "replicas": 2,
        "settings": {"served_model_name": "small", "access_log": True, "max_sequences": 64},
        "models": [
            {
                "path": "base",
                "name": "preset:transformer-base",
                "replicas": 1,
                "maxReplicas": 3,
                "settings": {
                    "access_log": False,
                    "max_waiting_requests": 100,
                    "max_body_bytes": 8388608,
                },
            },
            {"path": "again", "name": "all-MiniLM-L6-v2"},
        ],
        "ingress": {"enabled": True, "annotations": {f"{NGINX}send-timeout": "99"}},
    },
    "models by load": {
        "autoscaling": {"enabled": True, "minReplicas": 2},
        "models": [{"path": "base", "name": "a", "minReplicas": 3, "maxReplicas": 6}],
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
    },
    "monitors": {
        "monitoring": {"kind": "ServiceMonitor", "secretName": "prometheus-key"},
        "apiKeys": {"secretName": "keys"},
    },
    "steps": {
        "upgrade": {
            "type": "NewClusterWithIncrementalUpgrade",
            "gatewayClassName": "istio",
            "stepSizePercent": 10,
        }
    },
    "hosts": {
        "settings": {"allowed_hosts": ["a.example", SERVED]},
        "models": [{"path": "a", "name": "b", "settings": {"allowed_hosts": ["b.example"]}}],
    },
    "hosts and a key": {
        "apiKeys": {"secretName": "keys"},
        "monitoring": {"secretName": "prometheus-key"},
        "settings": {"allowed_hosts": ["a.example"]},
        "models": [{"path": "a", "name": "b"}],
        "maxReplicas": 8,
        "ingress": {"enabled": True, "host": "a.example"},
    },
    "head stays": {"podDisruptionBudget": {"head": True}},
    "day 1 on kind": EXAMPLES["rayservice"] | DAY1,
    "nothing": {
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "monitoring": {"scrape": False},
        "workers": {"topologySpread": []},
    },
}
# Without KubeRay, which no value asks for
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    **{f"{name} as it stands": {**one} for name, one in EXAMPLES.items() if "kind" not in one},
    "deployment": {"kind": "Deployment"},
    "day 1 on kind, as it stands": DAY1,
    "deployment of more": {
        "kind": "Deployment",
        "device": "cuda",
        "replicas": 5,
        "apiKeys": {"secretName": "keys"},
        "monitoring": {"secretName": "prometheus-key"},
        "settings": {
            "cors_origins": ["https://a.example", "https://b.example"],
            "max_body_bytes": 4194304,
            "deadline_seconds": 12.5,
        },
        "model": {"source": "hub", "name": "org/model@v1", "hub": {"secretName": "hub-token"}},
        "ingress": {"enabled": True},
        "pods": CASES["pods"]["pods"],
        "serviceAccount": {"name": "weights"},
    },
    "deployment by load": {
        "kind": "Deployment",
        "replicas": None,
        "monitoring": {"kind": "ServiceMonitor"},
    },
    "deployment of models": {
        "kind": "Deployment",
        "settings": {"served_model_name": "small", "max_sequences": 64, "max_tokens": 128},
        "models": [
            {
                "path": "my-reranker",
                "name": "/weights/reranker",
                "settings": {"served_model_name": "Org/My-Reranker", "max_tokens": 256},
            },
            {"path": "again", "name": "all-MiniLM-L6-v2", "settings": {"dtype": "float32"}},
        ],
        "workers": {"cpu": {"resources": {"requests": {"cpu": 9, "memory": "3Gi"}}}},
        "ingress": {"enabled": True},
    },
    "deployment of hosts and a key": {
        "apiKeys": {"secretName": "keys"},
        "monitoring": {"secretName": "prometheus-key", "kind": "ServiceMonitor"},
        "settings": {"allowed_hosts": ["a.example", "b.example"]},
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public"}],
            "hostnames": ["a.example", "b.example"],
        },
        "ingress": {
            "enabled": True,
            "host": "b.example",
            "tlsSecretName": "certificate",
        },
    },
    "deployment alone": {
        **CASES["nothing"],
        "startSeconds": 901,
        "kind": "Deployment",
        "settings": {"drain_seconds": 0, "allowed_hosts": ["a.example"]},
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
    "workers.gpu.resources.limits: one resource such as nvidia.com/gpu": {
        "device": "cuda",
        "workers": {"gpu": {"resources": {"limits": {"nvidia.com/gpu": None}}}},
    },
    "set the default to null": {
        "device": "cuda",
        "workers": {"gpu": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}},
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
    "workers.cpu.resources: cpu 2500m, and a replica needs 3": {
        "workers": {"cpu": {"resources": {"limits": {"cpu": "2500m"}}}}
    },
    "workers.gpu.resources: cpu 1, and a replica needs 2": {
        "device": "cuda",
        "workers": {"gpu": {"resources": {"requests": {"cpu": 1}}}},
    },
    "monitoring.secretName: with API keys, Prometheus needs a key marked `metrics`": {
        "apiKeys": {"secretName": "keys"}
    },
    "networkPolicy.extraEgress: allow the way to settings.tracing": {
        "settings": {"tracing": "http://collector:4318/v1/traces"}
    },
    "at '/monitoring': additional properties 'rules' not allowed": {"monitoring": {"rules": True}},
    "httpRoute.parentRefs: name the gateway it belongs to": {"httpRoute": {"enabled": True}},
    "release name 1st: KubeRay wants a letter": {"release": "1st"},
    "workers.cpu.resources: memory 1Gi; with less than 2Gi the pod is killed": {
        "workers": {"cpu": {"resources": {"limits": {"memory": "1Gi"}}}}
    },
    "head.resources: memory 2000M; with less than 2Gi": {
        "head": {"resources": {"requests": {"memory": "2000M"}, "limits": {"memory": None}}}
    },
    "additional properties 'nodeAfinity' not allowed": {"head": {"affinity": {"nodeAfinity": {}}}},
    "additional properties 'vaule' not allowed": {
        "pods": {"extraEnv": [{"name": "A", "vaule": "b"}]}
    },
    "additional properties 'secretReff' not allowed": {
        "pods": {"envFrom": [{"secretReff": {"name": "a"}}]}
    },
    "additional properties 'emptyDirr' not allowed": {
        "pods": {"extraVolumes": [{"name": "a", "emptyDirr": {}}]}
    },
    "additional properties 'readonly' not allowed": {
        "pods": {"extraVolumeMounts": [{"name": "a", "mountPath": "/a", "readonly": True}]}
    },
    "additional properties 'comand' not allowed": {
        "pods": {"initContainers": [{"name": "a", "comand": ["b"]}]}
    },
    "at '/pods/sidecars/0/ports/0/containerPort': got string, want integer": {
        "pods": {"sidecars": [{"name": "a", "ports": [{"containerPort": "http"}]}]}
    },
    "at '/networkPolicy/extraEgress/0': additional properties 'port' not allowed": {
        "networkPolicy": {"extraEgress": [{"port": 443}]}
    },
    "pods.extraEnv RAY_SERVE_HAPROXY_MAXCONN: the chart sets it": {
        "pods": {"extraEnv": [{"name": "RAY_SERVE_HAPROXY_MAXCONN", "value": "1"}]}
    },
    "pods.extraEnv HEADLIGHT_MAX_TOKENS: the chart sets it": {
        "pods": {"extraEnv": [{"name": "HEADLIGHT_MAX_TOKENS", "value": "1"}]}
    },
    "pods.labels app: the chart or KubeRay sets it": {"pods": {"labels": {"app": "mine"}}},
    "pods.extraVolumes shm: the chart has a volume of this name": {
        "pods": {"extraVolumes": [{"name": "shm", "emptyDir": {}}]}
    },
    "pods.sidecars ray-worker: the chart or KubeRay has a container of this name": {
        "pods": {"sidecars": [{"name": "ray-worker", "image": "a"}]}
    },
    "additional properties 'deadline_seconds' not allowed": {
        "models": [{"path": "a", "name": "b", "settings": {"deadline_seconds": 3}}]
    },
    "models a: replicas 3 must not be more than maxReplicas, which is 2": {
        "models": [{"path": "a", "name": "b", "replicas": 3, "maxReplicas": 2}]
    },
    "models embed: the first model answers at /embed; choose another path": {
        "models": [{"path": "embed", "name": "b"}]
    },
    "models a: the first model answers at /a": {
        "models": [{"path": "a", "name": "b"}, {"path": "a", "name": "c"}]
    },
    "model.name b: with model.source hub, org/name or org/name@revision": {
        "model": {"source": "hub", "name": "org/name"},
        "models": [{"path": "a", "name": "b"}],
    },
    "upgrade.gatewayClassName istio: set upgrade.type": {"upgrade": {"gatewayClassName": "istio"}},
    "upgrade.gatewayClassName: KubeRay makes a gateway of this class": {
        "upgrade": {"type": "NewClusterWithIncrementalUpgrade"}
    },
    "upgrade.stepSizePercent 30 must not be more than maxSurgePercent, which is 20": {
        "upgrade": {
            "type": "NewClusterWithIncrementalUpgrade",
            "gatewayClassName": "istio",
            "stepSizePercent": 30,
        }
    },
    "upgrade.type: clients come by the gateway that KubeRay makes; disable httpRoute": {
        "upgrade": {"type": "NewClusterWithIncrementalUpgrade", "gatewayClassName": "istio"},
        "ingress": {"enabled": True},
    },
    "replicas: null only with kind Deployment": {"replicas": None},
    "monitoring.kind ServiceMonitor: of more than ten replicas Prometheus asks each by itself": {
        "maxReplicas": 11,
        "monitoring": {"kind": "ServiceMonitor"},
    },
    "autoscaling.enabled: only with kind RayService": {
        "kind": "Deployment",
        "autoscaling": {"enabled": True},
    },
    "models a: replicas: only with kind RayService; a pod has one replica of each model": {
        "kind": "Deployment",
        "models": [{"path": "a", "name": "b", "replicas": 2}],
    },
    "models a: settings.access_log: with kind Deployment it belongs to all models": {
        "kind": "Deployment",
        "models": [{"path": "a", "name": "b", "settings": {"access_log": False}}],
    },
    "models a: settings.served_model_name org/b: with kind Deployment it must end in the path": {
        "kind": "Deployment",
        "models": [{"path": "a", "name": "b", "settings": {"served_model_name": "org/b"}}],
    },
    "models ready: the first model answers at /ready; choose another path": {
        "kind": "Deployment",
        "models": [{"path": "ready", "name": "b"}],
    },
    "workers.cpu.resources: cpu 3, and 2 models need 6": {
        "kind": "Deployment",
        "models": [{"path": "a", "name": "b"}],
    },
    "workers.gpu.resources: memory 2Gi; with less than 2560Mi the pod is killed": {
        "kind": "Deployment",
        "device": "cuda",
        "models": [{"path": "a", "name": "b"}],
        "workers": {"gpu": {"resources": {"requests": {"cpu": 4}, "limits": {"memory": "2Gi"}}}},
    },
    "settings.allowed_hosts: Prometheus asks each pod by its address": {
        "kind": "Deployment",
        "settings": {"allowed_hosts": ["a.example"]},
    },
    "settings.allowed_hosts: Prometheus asks each pod by its address; give it a key": {
        "maxReplicas": 8,
        "models": [
            {
                "path": "a",
                "name": "b",
                "settings": {"allowed_hosts": [SERVED]},
                "maxReplicas": 3,
            }
        ],
    },
    "settings.allowed_hosts: Prometheus asks each pod by its address; give it a key (": {
        "kind": "Deployment",
        "apiKeys": {"secretName": "keys"},
        "monitoring": {"secretName": "prometheus-key"},
        "settings": {"allowed_hosts": ["a.example"], "public_metrics": True},
    },
    "monitoring.secretName: with API keys, Prometheus needs a key marked `metrics`; or": {
        "apiKeys": {"secretName": "keys"},
        "settings": {"public_metrics": True},
        "models": [{"path": "a", "name": "b", "settings": {"public_metrics": False}}],
        "maxReplicas": 8,
    },
    "ingress.host b.example: headlight does not answer under this name; add it to settings": {
        "settings": {"allowed_hosts": ["a.example", SERVED]},
        "ingress": {"enabled": True, "host": "b.example"},
    },
    "httpRoute.hostnames *.example: a does not answer under this name": {
        "settings": {"allowed_hosts": ["*.example"]},
        "models": [{"path": "a", "name": "b", "settings": {"allowed_hosts": ["b.example"]}}],
        "monitoring": {"scrape": False},
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public"}],
            "hostnames": ["*.example"],
        },
    },
    f"settings.allowed_hosts: Prometheus asks {SERVED}; add it": {
        "settings": {"allowed_hosts": ["a.example"]},
    },
}
for values in (*CASES.values(), *REFUSED.values()):
    values.setdefault("kind", "RayService")

every_cluster = pytest.mark.parametrize("case", CASES)
every_case = pytest.mark.parametrize("case", [*CASES, *DEPLOYMENTS])
