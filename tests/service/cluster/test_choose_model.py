"""Which model the installed HAProxy leads a request to."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from service.cluster import choose_model
from tests.rays_haproxy import free_port, running, written_by_ray

NAMES = {
    "first": {
        "names": ["all-MiniLM-L6-v2"],
        "paths": [],
        "tasks": ["encode"],
        "released": ["2026-11-29"],
    },
    "rerank": {
        "names": ["org/My-Reranker", "org/My-Reranker:law"],
        "paths": ["/rerank", "/v1/rerank", "/predict"],
        "tasks": ["encode", "rerank"],
        "released": ["2026-09-15"],
    },
    "sparse": {
        "names": ["splade"],
        "paths": ["/embed_sparse", "/predict"],
        "tasks": [],
        "released": [],
    },
}
EVERY = "all-MiniLM-L6-v2, org/My-Reranker, org/My-Reranker:law, splade"
NONE_LOST: Mapping[str, str] = {}


class Echo(BaseHTTPRequestHandler):
    """Stands in for a replica: says which it is and what reached it."""

    protocol_version = "HTTP/1.1"
    model, silent = "", False

    def answer(self) -> None:
        """Answer any request."""
        length = int(self.headers.get("content-length", 0))
        self.rfile.read(length)
        said: Any = {
            "model": self.model,
            "path": self.path,
            "names": unquote(self.headers.get(choose_model.NAMES_HEADER, "")),
            "models": self.headers.get(choose_model.MODELS_HEADER, ""),
            "upgrade": self.headers.get("upgrade"),
        }
        body = json.dumps(NAMES[self.model] if self.path == choose_model.NAMES else said).encode()
        self.send_response(503 if self.silent and self.path == choose_model.NAMES else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def behind_haproxy(folder: Path, lost: Mapping[str, str] = NONE_LOST) -> Iterator[int]:
    """Run three models behind HAProxy; the port where it listens.

    Args:
        lost: models without a replica: their server is "closed", or Ray's "proxy".
    """
    ports = {}
    with ExitStack() as stack:
        for model in NAMES:
            said = {"model": model, "silent": lost.get(model) == "proxy"}
            handler = type(model, (Echo,), said)
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            server.handle_error = lambda *_: None  # type: ignore[method-assign]  # of a check
            ports[model] = server.server_port
            if lost.get(model) == "closed":
                server.server_close()
                continue
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        port, config = free_port(), folder / "haproxy.cfg"
        places = {"/my-reranker": "rerank", "/splade": "sparse", "/": "first"}
        behind = {prefix: [ports[model]] for prefix, model in places.items()}
        config.write_text(written_by_ray(port, behind, folder))
        stack.enter_context(running(config, port))
        yield port


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Where HAProxy listens, with three models behind it."""
    with behind_haproxy(tmp_path_factory.mktemp("haproxy")) as port:
        yield port


def ask(
    port: int,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str = "",
) -> dict[str, Any]:
    """What the replica says that was asked."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
    with connection.getresponse() as answer:
        told: dict[str, Any] = json.load(answer)
    connection.close()
    return told


BLANKS = b" " * 100_000
LATE = b'{"input": "' + b"a" * 140_000 + b'", "model": "splade"}'
BODIES = {
    "a name": (b'{"model": "splade"}', "sparse"),
    "another case": (b'{"model": "SPLADE"}', "sparse"),
    "latest": (b'{"model": "splade:latest"}', "sparse"),
    "an organisation": (b'{"model": "naver/splade"}', "sparse"),
    "a hub's name": (b'{"model": "org/my-reranker"}', "rerank"),
    "its last part": (b'{"model": "my-reranker"}', "rerank"),
    "another organisation": (b'{"model": "other/my-reranker"}', "first"),
    "an adapter": (b'{"model": "My-Reranker:LAW"}', "rerank"),
    "an unknown adapter": (b'{"model": "my-reranker:med"}', "first"),
    "blanks": (b'\r\n\t {  "model"  :\n "splade" }', "sparse"),
    "many blanks": (b"{" + BLANKS + b'"model": "splade"}', "sparse"),
    "an escaped value": (b'{"model": "spl\\u0061de"}', "sparse"),
    "behind others": (b'{"input": ["a"], "model": "splade"}', "sparse"),
    "of two, the first": (b'{"model": "splade", "model": "my-reranker"}', "sparse"),
    "an escaped key": (b'{"mod\\u0065l": "splade"}', "first"),
    "of another depth": (b'{"input": {"model": "splade"}}', "first"),
    "a number": (b'{"model": 7}', "first"),
    "null": (b'{"model": null}', "first"),
    "no JSON": (b"model=splade", "first"),
    "a list": (b'[{"model": "splade"}]', "first"),
    "beyond the buffer": (LATE, "first"),
    "the model at the root": (b'{"model": "all-minilm-l6-v2"}', "first"),
}


@pytest.mark.parametrize(("body", "model"), BODIES.values(), ids=BODIES.keys())
def test_a_body_is_led_to_the_model_that_it_names(port: int, body: bytes, model: str) -> None:
    """Below its prefix; what HAProxy cannot read goes to the root, whose replica can."""
    prefix = {"first": "", "rerank": "/my-reranker", "sparse": "/splade"}[model]

    told = ask(port, "/v1/embeddings", body)

    assert (told["model"], told["path"]) == (model, f"{prefix}/v1/embeddings")


PATHS = {
    "of a model": ("/v2/models/splade/infer", {}, "sparse"),
    "of a model with an organisation": ("/v2/models/org/My-Reranker/infer", {}, "rerank"),
    "of a version": ("/v2/models/splade/versions/1/infer", {}, "sparse"),
    "of an escaped name": ("/v2/models/org%2Fmy-reranker/infer", {}, "rerank"),
    "that one model answers": ("/v1/rerank", {}, "rerank"),
    "that two models answer": ("/predict", {}, "first"),
    "below a prefix": ("/splade/v1/rerank", {}, "sparse"),
    "that begins as a prefix": ("/spladed", {}, "first"),
    "with a header": ("/v1/rerank", {choose_model.MODEL_HEADER: "Splade"}, "sparse"),
    "with a list in a header": ("/v1/rerank", {choose_model.MODEL_HEADER: "nope, splade"}, "first"),
    "with a header of nothing": ("/v1/rerank", {choose_model.MODEL_HEADER: ""}, "first"),
    "below a prefix, with a header": (
        "/splade/x",
        {choose_model.MODEL_HEADER: "my-reranker"},
        "sparse",
    ),
}


@pytest.mark.parametrize("body", [None, b"[]"], ids=["GET", "POST"])
@pytest.mark.parametrize(("path", "headers", "model"), PATHS.values(), ids=PATHS.keys())
def test_a_request_that_names_none_is_led_by_header_and_path(
    port: int, path: str, headers: dict[str, str], model: str, body: bytes | None
) -> None:
    """A header goes before a path, a prefix before both."""
    assert ask(port, path, body, headers)["model"] == model


SPELT = {  # how a path may be sent: the model that is asked, and for what
    "/rerank/": ("rerank", "/my-reranker/rerank"),
    "//rerank": ("rerank", "/my-reranker/rerank"),
    "/v1//rerank//": ("rerank", "/my-reranker/v1/rerank"),
    "//v2/models/splade/infer": ("sparse", "/splade/v2/models/splade/infer"),
    "/v2/models//splade//infer/": ("sparse", "/splade/v2/models/splade/infer"),
    "/%76%31/r%65rank": ("rerank", "/my-reranker/v1/rerank"),
    "/v1/models/a%2F%2fb": ("first", "/v1/models/a%2F%2fb"),
    "/splade/": ("sparse", "/splade"),
    "/%73plade/": ("sparse", "/splade"),
    "/ready/": ("first", "/ready"),
    "/v1/encode/?a=//&b=%2f/": ("first", "/v1/encode?a=//&b=%2f/"),
    "//": ("first", "/"),
    "/": ("first", "/"),
}


@pytest.mark.parametrize("path", SPELT)
def test_a_path_is_compared_in_one_spelling(port: int, path: str) -> None:
    """HAProxy gives it to the replica so; a query stays as it is."""
    model, reached = SPELT[path]
    told = ask(port, path)

    assert (told["model"], told["path"]) == (model, reached)


@pytest.mark.parametrize("path", [choose_model.NAMES, "/-/routes", "/-/Routes/", "/%2d/routes"])
def test_lists_of_models_that_ask_for_no_key_are_not_for_clients(port: int, path: str) -> None:
    """Ours and Ray's."""
    assert ask(port, path)["code"] == "not_found"


@pytest.mark.parametrize("path", ["/ready/", "//ready", "/%72eady"])
def test_a_path_that_all_models_answer_is_so_however_it_is_spelt(port: int, path: str) -> None:
    """The root's replica is told of all."""
    assert len(choose_model.read_models(ask(port, path)["models"])) == len(NAMES)


REFUSED = ["/v1%2Fencode", "/%2fv1/encode", "/splade%2Fv1/encode", "/a%2F/models/b", "/%2D%20"]


@pytest.mark.parametrize("path", REFUSED)
def test_an_encoded_slash_is_refused_outside_of_a_models_name(port: int, path: str) -> None:
    """There is one way to write each path."""
    assert ask(port, path)["code"] == "bad_request"


def test_a_body_goes_before_a_header(port: int) -> None:
    """And a prefix before a body."""
    named, body = {choose_model.MODEL_HEADER: "my-reranker"}, b'{"model": "splade"}'

    assert ask(port, "/v1/encode", body, named)["model"] == "sparse"
    assert ask(port, "/my-reranker/v1/encode", body)["model"] == "rerank"


@pytest.mark.parametrize("sent", [None, "of my own"])
@pytest.mark.parametrize("body", [b'{"model": "nope"}', b'{"model": "splade"}', b"{}"])
def test_a_replica_is_told_all_names(port: int, body: bytes, sent: str | None) -> None:
    """Whatever a client says; not below a prefix, where a request can be for one model alone."""
    headers = {choose_model.NAMES_HEADER: sent} if sent else {}

    assert ask(port, "/v1/encode", body, headers)["names"] == EVERY
    assert ask(port, "/splade/v1/encode", body, headers)["names"] == ""


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/splade"])
def test_the_replica_at_the_root_lists_all_names(port: int, path: str) -> None:
    """One below a prefix speaks for itself."""
    told, below = ask(port, path), ask(port, f"/splade{path}")

    assert (told["model"], told["names"]) == ("first", EVERY)
    assert (below["model"], below["names"]) == ("sparse", "")


def test_the_replica_at_the_root_is_told_all_models_and_whether_each_answers(port: int) -> None:
    """For what speaks for all; below a prefix it is not, nor is what a client says passed on."""
    for path in ("/ready", "/health", "/v2/health/ready", "/info", "/v1/models", "/models"):
        assert choose_model.read_models(ask(port, path)["models"]) == [
            ("all-MiniLM-L6-v2", "/", ["encode"], "2026-11-29", True),
            ("org/My-Reranker", "/my-reranker", ["encode", "rerank"], "2026-09-15", True),
            ("splade", "/splade", [], "", True),
        ]
    said = {choose_model.MODELS_HEADER: "splade / encode 2026-11-29 1"}
    assert ask(port, "/splade/ready", headers=said)["models"] == ""
    assert ask(port, "/live", headers=said)["models"] == ""


@pytest.mark.parametrize("lost", ["closed", "proxy"])
def test_without_the_roots_replicas_another_model_says_that_the_address_is_ready(
    tmp_path: Path, lost: str
) -> None:
    """Whether HAProxy's check fails, or Ray's proxy passes it; one that is named, for itself."""
    with behind_haproxy(tmp_path, {"first": lost}) as port:
        while "model" not in (told := ask(port, "/ready")):  # HAProxy has not checked yet
            time.sleep(0.01)
        named = ask(port, "/ready", headers={choose_model.MODEL_HEADER: "splade"})

    models = choose_model.read_models(told["models"])
    assert (told["model"], told["path"]) == ("rerank", "/my-reranker/ready")
    assert [model.answers for model in models] == [False, True, True]
    assert (named["model"], named["path"], named["models"]) == ("sparse", "/splade/ready", "")


def test_no_client_asks_a_replica_for_its_names(port: int) -> None:
    """HAProxy does, past the keys; however it is spelt, and below a prefix it is no such path."""
    for path in (choose_model.NAMES, "/%2d/names", "//-/names/", "/%2D/%6eames"):
        assert ask(port, path)["code"] == "not_found"
    assert ask(port, f"/splade{choose_model.NAMES}")["path"] == f"/splade{choose_model.NAMES}"


def test_no_request_asks_a_replica_for_another_protocol(port: int) -> None:
    """It would not read the body, and could take it for the next client's request."""
    asks = {"connection": "upgrade", "upgrade": "foo"}

    assert ask(port, "/v1/encode", b"{}", asks)["upgrade"] is None


def test_a_replica_is_asked_once(tmp_path: Path) -> None:
    """What it said counts while it is there."""
    there = choose_model.Backend("b", "/b", {"one": ("127.0.0.1", 9)})
    (tmp_path / choose_model.ANSWERS_FILE).write_text(json.dumps({"one": NAMES["sparse"]}))

    assert choose_model.find_served([there], tmp_path)[0].names == ["splade"]
    assert choose_model.find_served([there], tmp_path)[0].names == ["splade"]


@pytest.mark.parametrize(
    "kept", ["", '{"one": {"names": ["spl', "[]", '{"one": 1}', '{"one": {}}', "\udcff"]
)
def test_what_replicas_said_is_asked_again_where_it_cannot_be_read(
    port: int, tmp_path: Path, kept: str
) -> None:
    """A full disk cut it short, or it is not ours: no reload ends by it."""
    there = choose_model.Backend("b", "/b", {"one": ("127.0.0.1", 9)})
    (tmp_path / choose_model.ANSWERS_FILE).write_bytes(kept.encode(errors="surrogateescape"))

    assert choose_model.find_served([there], tmp_path)[0].names == []
    assert json.loads((tmp_path / choose_model.ANSWERS_FILE).read_text()).keys() == {"b"}


@pytest.mark.parametrize("said", [[], {"names": 1}, {}, None])
def test_another_application_that_answers_there_is_no_model(said: Any) -> None:
    """On a cluster, where each has its own paths."""

    class Foreign(Echo):
        def answer(self) -> None:
            body = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert choose_model.ask_replica("127.0.0.1", server.server_port) is None
        thread.join()


def test_on_a_full_disk_the_last_maps_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file is the new one or the last one, whole, and stderr says which stays."""
    there = [choose_model.Backend("b", "/b", {"one": ("127.0.0.1", 9)})]
    files = (choose_model.ANSWERS_FILE, choose_model.MODELS_MAP, choose_model.PATHS_MAP)
    (tmp_path / choose_model.ANSWERS_FILE).write_text(json.dumps({"one": NAMES["sparse"]}))
    choose_model.write_maps(choose_model.find_served(there, tmp_path), tmp_path)
    before = [(tmp_path / name).read_text() for name in files]
    for name in files:
        (tmp_path / f"{name}.new").mkdir()  # so that none can be written

    served = choose_model.find_served([*there, choose_model.Backend("c", "/", {})], tmp_path)
    choose_model.write_maps(served, tmp_path)

    assert [(tmp_path / name).read_text() for name in files] == before
    assert capsys.readouterr().err.count("stays as it was") == len(files)


def test_a_model_without_a_replica_keeps_its_names(tmp_path: Path) -> None:
    """As long as its application is there."""
    there = choose_model.Backend("b", "/b", {"one": ("127.0.0.1", 9)})
    gone = there._replace(servers={})
    (tmp_path / choose_model.ANSWERS_FILE).write_text(json.dumps({"one": NAMES["sparse"]}))

    found = [choose_model.find_served(each, tmp_path) for each in ([there], [gone], [], [gone])]

    names = [[served.names for served in each] for each in found]
    assert names == [[["splade"]], [["splade"]], [], [[]]]
