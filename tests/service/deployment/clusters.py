"""A cluster that is there only by what its dashboard says, in the words of Ray 2.60."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPTIONS = {"host": "127.0.0.1", "port": 8000, "request_timeout_s": 35.0}


def application(
    status: str, *replicas: str, file: dict[str, Any] | None = None, **changed: Any
) -> dict[str, Any]:
    """An application as Ray's dashboard has it, with as many replicas as it should have.

    Args:
        file: what was sent of it; None: a program deployed it.
        changed: keys that are otherwise.
    """
    listed = [{"replica_id": name, "state": "RUNNING"} for name in replicas]
    deployment = {
        "status": "UPDATING",
        "message": "",
        "replicas": listed,
        "target_num_replicas": len(replicas),
    }
    return {
        "status": status,
        "message": "",
        "route_prefix": "/",
        "source": "declarative",
        "last_deployed_time_s": 1_764_000_000.0,
        "deployed_app_config": file,
        "deployments": {"Encoder": deployment},
        **changed,
    }


class Cluster:
    """A cluster as its dashboard tells of it, in the words of Ray 2.60.

    Args:
        before: its applications until something is sent.
        after: what they are then, one answer after the other; the last stays.
        nodes: resources and labels of each.
        replicas: ids of those that live all the time.
        broken: whether it breaks off when it is sent something.
    """

    def __init__(
        self,
        before: dict[str, Any],
        after: Sequence[dict[str, Any]] = (),
        nodes: Sequence[tuple[dict[str, float], dict[str, str]]] = (({"CPU": 2.0}, {}),),
        replicas: Sequence[str] = (),
        broken: bool = False,
    ) -> None:
        self.broken = broken
        self.now, self.after, self.sent = before, list(after), list[Any]()
        self.nodes = [
            {"state": "ALIVE", "resources_total": resources, "labels": labels}
            for resources, labels in nodes
        ]
        self.actors = [{"name": f"SERVE_REPLICA::headlight#Encoder#{name}"} for name in replicas]

    def get(self, path: str) -> Any:
        """The answer to a GET."""
        if path.startswith("/api/serve"):
            if self.sent and self.after:
                self.now = self.after.pop(0)
            http = {"http_options": OPTIONS, "proxy_location": "EveryNode"} if self.now else {}
            return {"applications": self.now, **http}
        listed = self.nodes if path.startswith("/api/v0/nodes") else self.actors
        return {"data": {"result": {"result": listed}}}

    def put(self, body: bytes) -> None:
        """What is sent stays."""
        self.sent.append(json.loads(body))


@contextmanager
def dashboard_of(cluster: Cluster) -> Iterator[str]:
    """The dashboard of a cluster; gives its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(json.dumps(cluster.get(self.path)).encode())

        def do_PUT(self) -> None:
            if cluster.broken:
                return  # without an answer
            cluster.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(b"")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
