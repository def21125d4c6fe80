"""A request for every refusal, which tests/test_refusals.py sends."""

import json
from typing import Any, NamedTuple

LONG = 99  # characters of a path that is not shown
WIDTH = 384  # of the bundled model
JSON, FILE = "application/json", "application/vnd.safetensors"
TEAM_KEY = "the-key-of-team-a"


class Row(NamedTuple):
    """One request that is refused.

    Args:
        body: a text or bytes as they are sent, anything else as JSON.
        shown: the body in words, where it is too long or no text.
        under: the state of the service; see tests/test_refusals.py.
    """

    code: str
    body: Any = None
    path: str = "/v1/encode"
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    shown: str = ""
    under: str = ""

    def content(self) -> bytes:
        """The body as it is sent."""
        if isinstance(self.body, bytes):
            return self.body
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return text.encode() if self.body is not None else b""

    def request(self) -> str:
        """The request in words."""
        path = self.path if len(self.path) < LONG else f"(a path of {len(self.path):,} characters)"
        lines = [] if (self.method, path) == ("POST", "/v1/encode") else [f"{self.method} {path}"]
        lines += [f"{name}: {text}" for name, text in self.headers]
        body = self.shown or (self.content().decode() if self.body is not None else "")
        return "\n".join([*lines, *([body] if body else [])])


TEXT = {"inputs": ["All is well"]}
IDS, VECTOR = {"token_ids": [101, 102]}, {"embeddings": [[0.0] * WIDTH]}


def attention(**fields: Any) -> dict[str, Any]:
    """A request for attention."""
    return {**TEXT, "attention": fields}


HEAD = {"layer": 5, "head": 11}
PATCH = {**HEAD, "from": 0}
ROWS = (
    Row("invalid_json", '{"inputs": ["All is well",]}'),
    Row("duplicate_key", '{"inputs": ["a"], "inputs": ["b"]}'),
    Row(
        "bad_request",
        TEXT,
        headers=(("Host", "localhost"), ("Content-Type", JSON), ("Content-Type", FILE)),
    ),
    Row("unauthorized", TEXT, under="with API keys"),
    Row(
        "forbidden_origin",
        TEXT,
        headers=(("Content-Type", "text/plain"), ("Origin", "https://evil.example")),
    ),
    Row(
        "model_forbidden",
        TEXT,
        headers=(("Authorization", f"Bearer {TEAM_KEY}"),),
        under="with a key for other models",
    ),
    Row("not_found", TEXT, path="/v1/encod"),
    Row("task_not_found", {**TEXT, "classify": True}),
    Row("task_not_found", {"query": "a", "texts": ["b"]}, path="/rerank"),
    Row("model_not_found", {**TEXT, "model": "bert-base-uncased"}),
    Row("request_timeout", TEXT, shown="(half a body)"),
    Row("method_not_allowed", path="/v1/encode", method="GET"),
    Row("not_acceptable", TEXT, headers=(("Accept", "text/html"),)),
    Row("body_too_large", " " * (2 * 2**20 + 1), shown="(2 MiB and a byte)"),
    Row("too_many_values", "[" * 99_999, shown="(99,999 lists)"),
    Row(
        "too_many_tokens",
        {"inputs": [{"token_ids": [7] * 256}] * 1172},
        shown='{"inputs": [(1,172 times 256 token ids)]}',
    ),
    Row(
        "attention_too_large",
        {"inputs": [{"token_ids": [7] * 250}], "attention": {}},
        shown='{"inputs": [(250 token ids)], "attention": {}}',
    ),
    Row(
        "answer_too_large",
        {"inputs": [{"token_ids": [7] * 250}] * 60, "tokens": True},
        shown='{"inputs": [(60 times 250 token ids)], "tokens": true}',
    ),
    Row(
        "unsupported_media_type",
        TEXT,
        headers=(("Content-Type", "application/x-www-form-urlencoded"),),
    ),
    Row("unsupported_encoding", TEXT, headers=(("Content-Encoding", "gzip"),)),
    Row("bad_host", TEXT, headers=(("Host", "evil.example"),), under="with allowed hosts"),
    Row("invalid_type", {**TEXT, "layers": 0}),
    Row("invalid_type", {"inputs": "All is well"}),
    Row("out_of_range", {**TEXT, "truncate": "rigth"}),
    Row("out_of_range", attention(layers=0)),
    Row("out_of_range", attention(form="rows")),
    Row("unknown_field", {"inputs": [{"text": "a", "pairs": "b"}]}),
    Row("unknown_field", TEXT, path="/v1/encode?dryrun=true"),
    Row("missing_field", {"model": "all-MiniLM-L6-v2"}, path="/v1/embeddings"),
    Row("exactly_one_input", {"inputs": [{"text": "a", "token_ids": [101, 102]}]}),
    Row("batch_empty", {"inputs": []}),
    Row("batch_too_large", {"inputs": ["a"] * 2049}, shown='{"inputs": [(2,049 texts)]}'),
    Row("sequence_empty", {"inputs": ["All is well", ""]}),
    Row(
        "sequence_too_long",
        {"inputs": ["well " * 300]},
        shown='{"inputs": ["(300 words)"]}',
    ),
    Row(
        "text_too_long",
        {"inputs": ["a" * 262_145]},
        shown='{"inputs": ["(262,145 letters)"]}',
    ),
    Row("invalid_text", '{"inputs": ["\\ud800"]}'),
    Row("token_out_of_range", {"inputs": [{"token_ids": [101, 30522, 102]}]}),
    Row("shape_mismatch", {"inputs": [{"embeddings": [[0.5, 0.5]]}]}),
    Row(
        "bad_base64",
        {"inputs": [{"embeddings": {"shape": [1, WIDTH], "dtype": "float32", "data": "AAA"}}]},
    ),
    Row(
        "payload_length_mismatch",
        {"inputs": [{"embeddings": {"shape": [1, WIDTH], "dtype": "float32", "data": "AAAA"}}]},
    ),
    Row(
        "non_finite",
        f'{{"inputs": [{{"embeddings": [[{", ".join(["1e999"] * WIDTH)}]]}}]}}',
        shown='{"inputs": [{"embeddings": [[1e999, ...]]}]}',
    ),
    Row("index_out_of_range", attention(heads={"9": [99]})),
    Row("words_unknown", {"inputs": [IDS], "attention": {"level": "word"}}),
    Row(
        "specials_unknown",
        {"inputs": [VECTOR], "attention": {"specials": "drop"}},
        shown='{"inputs": [{"embeddings": [[0.0, ...]]}], "attention": {"specials": "drop"}}',
    ),
    Row("nothing_left", {"inputs": [IDS], "attention": {"specials": "drop"}}),
    Row("patch_mismatch", {"inputs": ["All is well", {"text": "No", "patch": [PATCH]}]}),
    Row("span_empty", {"inputs": [{"text": "All is well", "spans": [[0, 3], [3, 4]]}]}),
    Row(
        "similarity_not_explainable",
        {"left": "All is well", "right": ["All is good"]},
        path="/v1/similarity",
        under="pooled by the first token",
    ),
    Row("prompt_not_found", {**TEXT, "prompt_name": "querry"}, under="with prompts"),
    Row("prompt_without_text", {"inputs": [IDS], "prompt_name": "query"}, under="with prompts"),
    Row("space_changed", TEXT, headers=(("X-Headlight-Expect", "s1-0123456789abcdef"),)),
    Row("deadline_unreachable", TEXT, headers=(("X-Headlight-Deadline-Ms", "0"),)),
    Row(
        "overloaded",
        {"inputs": ["a" * 99_999]},
        shown='{"inputs": ["(99,999 letters)"]}',
        under="out of memory",
    ),
    Row("headers_too_large", path="/live?" + "a" * 2048, method="GET"),
    Row("internal", path="/info", method="GET", under="broken"),
    Row(
        "nonfinite_output",
        {"inputs": [{"embeddings": [[3e38, -3e38] * (WIDTH // 2)]}]},
        shown='{"inputs": [{"embeddings": [[3e38, -3e38, ...]]}]}',
        under="without a bound on embeddings",
    ),
    Row("not_ready", path="/ready", method="GET", under="known to be wrong"),
    Row(
        "deadline_exceeded",
        {"inputs": "All is well"},
        path="/tokenize",
        headers=(("X-Headlight-Deadline-Ms", "0"),),
    ),
)
