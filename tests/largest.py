"""The largest requests that the limits allow, for every route and form, as data.

None may hold the event loop: tests/service/pipeline/test_turns.py counts its longest turn, and
tests/ray/test_waits.py measures how long GET /live of another client waits.
"""

import base64
import json
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from service.api import ROUTES
from service.shapes.answer import INFERENCE_HEADER
from tests.late_interaction import pylate
from tests.laya_models import make_laya
from tests.task_heads import checkpoint, embedder

JSON, FILE = "application/json", "application/vnd.safetensors"
OCTETS = "application/octet-stream"
MODEL = "all-MiniLM-L6-v2"
INFER = "/v2/models/{model}/infer"
VERSIONED = "/v2/models/{model}/versions/{version}/infer"
SEQUENCES, TOKENS = 2048, 300_000  # the limits, as the settings have them
COMPARED, DOCUMENTS, SPANS, QUESTIONS = 256, 64, 2048, 400
EXPLAINED = SEQUENCES // 2  # whose scores are carried back: as many sequences again
LONG = 254  # words of a text that the bundled model takes whole
HEADS = 72  # of the bundled model

# Makes a body of so many of what its route takes
Make = Callable[[int], Any]


class Largest(NamedTuple):
    """One request.

    Args:
        form: which of its route's.
        path: of the route, as ROUTES has it.
        most: how many of what it counts the limits allow.
        make: its body of that many or fewer, as JSON; None: it has none.
        headers: besides the body's.
        model: that answers it; see `write_model`.
        raw: of the Open Inference Protocol, the bytes that follow the JSON.
    """

    form: str
    path: str
    most: int = 0
    make: Make | None = None
    headers: Mapping[str, str] = {}
    model: str = "bundled"
    query: str = ""
    method: str = "post"
    raw: Callable[[int], bytes] | None = None

    @property
    def name(self) -> str:
        """What a table calls it."""
        return f"{self.method.upper()} {self.path}{', ' * bool(self.form)}{self.form}"

    @property
    def target(self) -> str:
        """Its path and query, where MODEL is served."""
        path = self.path.replace("{model}", MODEL).replace("{id}", MODEL)
        return path.replace("{version}", "1") + self.query

    def content(self, count: int | None = None) -> tuple[bytes, dict[str, str]]:
        """Return its body of so many, or the largest, and its headers."""
        if self.make is None:
            return b"", {}
        count = self.most if count is None else count
        body = json.dumps(self.make(count), separators=(",", ":")).encode()
        headers = {"content-type": JSON, **self.headers}
        if self.raw:
            headers = {"content-type": OCTETS, INFERENCE_HEADER: str(len(body))}
            body += self.raw(count)
        return body, headers


def write_model(name: str, folder: Path) -> Path:
    """Write the small model of random weights that answers the requests of this `model`."""
    labels = dict(enumerate(("contradiction", "entailment", "neutral")))
    numbers = {label: number for number, label in labels.items()}
    match name:
        case "reranker":
            checkpoint(folder, "ForSequenceClassification", num_labels=1)
        case "entailment":
            checkpoint(folder, "ForSequenceClassification", id2label=labels, label2id=numbers)
        case "sparse":
            checkpoint(folder, "ForMaskedLM")
        case "tagger":
            checkpoint(folder, "ForTokenClassification", num_labels=3)
        case "late":
            pylate(folder)
        case "decider":
            make_laya(folder)
        case _:
            embedder(folder)
    return folder


def letters(count: int) -> list[str]:
    """Texts of a letter."""
    return [string.ascii_lowercase[place % 26] for place in range(count)]


def words(count: int) -> str:
    """A text of so many tokens."""
    return " ".join(letters(count))


def objects(**fields: Any) -> Make:
    """Inputs that are objects with the same fields."""
    return lambda count: {"inputs": [{"text": text, **fields} for text in letters(count)]}


def inputs(**fields: Any) -> Make:
    """Inputs of a letter, with fields of the request."""
    return lambda count: {"inputs": letters(count), **fields}


def encoded() -> Iterator[Largest]:
    """POST /v1/encode: what it answers, how it is written, what its inputs are."""
    shown: dict[str, tuple[int, dict[str, Any]]] = {
        "pooled": (SEQUENCES, {}),
        "int8": (SEQUENCES, {"pooled": {"precision": "int8"}}),
        "float16": (SEQUENCES, {"dtype": "float16"}),
        "tokens": (SEQUENCES // 2, {"tokens": True}),
        "layers": (SEQUENCES // 8, {"layers": [*range(7)]}),
        "a sweep": (SEQUENCES, {"sweep": {"layers": [0, 1], "heads": [0]}}),
        "gates": (
            SEQUENCES,
            {"gates": [{"head": f"L{n // 12}H{n % 12}", "scale": 0.5} for n in range(HEADS)]},
        ),
    }
    forms = {
        "full": {},
        "rows": {"rows": [0]},
        "top": {"k": 1},
        "blocks": {},
        "mean": {"segments": [[0, 1]]},
        "stats": {},
        "dominance": {},
        "rollout": {},
        "why": {"rows": [0], "layers": [0]},
    }
    for form, more in forms.items():
        asked = {"form": form, **more}
        shown[form] = SEQUENCES, {"pooled": False, "attention": asked}
    shown["why above"] = (
        SEQUENCES // 4,
        {"pooled": False, "attention": {"form": "why", "rows": [0], "layers": [1], "heads": [0]}},
    )
    shown["mean of heads"] = SEQUENCES, {"pooled": False, "attention": {"heads": "mean"}}
    shown["one head"] = SEQUENCES, {"attention": {"layers": [0], "heads": [0]}}
    shown["words"] = SEQUENCES, {"attention": {"level": "word", "layers": [0], "heads": [0]}}
    for name, (most, fields) in shown.items():
        yield Largest(name, "/v1/encode", most, inputs(**fields))
        yield Largest(f"{name}, base64", "/v1/encode", most, inputs(**fields, encoding="base64"))
        yield Largest(f"{name}, a file", "/v1/encode", most, inputs(**fields), {"accept": FILE})
    yield Largest("dry run", "/v1/encode", SEQUENCES, inputs(attention={}), query="?dry_run=true")
    gates = [{"head": f"L{n // 12}H{n % 12}", "scale": 0.5} for n in range(3)]
    yield Largest("own gates", "/v1/encode", SEQUENCES, objects(gates=gates))
    yield Largest("own patches", "/v1/encode", SEQUENCES, patched)
    spans = {"spans": [[0, 1]]}
    yield Largest("own spans", "/v1/encode", SPANS, objects(**spans))
    yield Largest(
        "spans of one",
        "/v1/encode",
        SPANS,
        lambda count: {
            "inputs": [
                {
                    "text": words(LONG),
                    "spans": [
                        [2 * (n * LONG // count), 2 * (n * LONG // count) + 1] for n in range(count)
                    ],
                }
            ]
        },
    )
    yield Largest("spans, a file", "/v1/encode", SPANS, objects(**spans), {"accept": FILE})
    yield Largest("pairs", "/v1/encode", SEQUENCES, objects(pair="b"))
    yield Largest(
        "token ids",
        "/v1/encode",
        65_536,
        lambda count: {"inputs": [{"token_ids": [1037] * 32}] * (count // 32)},
    )
    yield Largest(
        "many token ids",
        "/v1/encode",
        SEQUENCES,
        lambda count: {"inputs": [{"token_ids": [1037] * 140}] * count},
    )
    rows = [[0.1] * 384]
    yield Largest(
        "embeddings", "/v1/encode", 900, lambda count: {"inputs": [{"embeddings": rows}] * count}
    )
    one = base64.b64encode(bytes(4 * 384)).decode()
    array = {"shape": [1, 384], "dtype": "float32", "data": one}
    yield Largest(
        "embeddings, base64",
        "/v1/encode",
        950,
        lambda count: {"inputs": [{"embeddings": array}] * count},
    )
    yield Largest("long texts", "/v1/encode", 500, lambda count: {"inputs": [words(LONG)] * count})
    yield Largest(
        "long token vectors, a file",
        "/v1/encode",
        150,
        lambda count: {"inputs": [words(LONG)] * count, "tokens": True},
        {"accept": FILE},
    )
    yield Largest(
        "cut texts",
        "/v1/encode",
        8,
        lambda count: {"inputs": ["." * 250_000] * count, "truncate": "right"},
    )


def patched(count: int) -> Any:
    """Inputs of which all but the first take a head of the first."""
    patch = [{"head": "L0H0", "from": 0}]
    return {"inputs": ["a", *[{"text": text, "patch": patch} for text in letters(count - 1)]]}


def compared() -> Iterator[Largest]:
    """POST /v1/similarity."""
    forms: dict[str, dict[str, Any]] = {
        "full": {},
        "top": {"form": "top", "k": 65_536},
        "score": {"form": "score"},
        "occlusion": {"form": "occlusion"},
        "by input": {"by": "input"},
        "by input, top": {"by": "input", "form": "top"},
        "by head": {"by": "head"},
        "a sweep": {"form": "score", "sweep": {"layers": [0]}},
        "words": {"level": "word"},
    }
    for name, fields in forms.items():
        for length in (1, 16):

            def make(count: int, fields: Any = fields, length: int = length) -> Any:
                return {"left": words(length), "right": [words(length)] * count, **fields}

            path = "/v1/similarity"
            form = name if length == 1 else f"{name}, of {length} words"
            yield Largest(form, path, COMPARED, make)
            yield Largest(f"{form}, a file", path, COMPARED, make, {"accept": FILE})
    yield Largest(
        "long, a file",
        "/v1/similarity",
        COMPARED,
        lambda count: {"left": words(LONG), "right": [words(LONG)] * count},
        {"accept": FILE},
    )


def judged() -> Iterator[Largest]:
    """What ranks, classifies and highlights."""
    for name, model in (
        ("", "bundled"),
        ("of a reranker", "reranker"),
        ("of many vectors", "late"),
    ):
        most = 30 if model == "late" else 60
        for unit in ("sentence", "word", "token"):
            yield Largest(
                f"{unit}, {name}".removesuffix(", "),
                "/v1/highlight",
                DOCUMENTS,
                lambda count, u=unit, m=most if model == "bundled" else 6: {
                    "query": "a",
                    "documents": ["A b. " * (m // 3)] * count,
                    "unit": u,
                    "top": 1024,
                    "prune": 0.5,
                },
                model=model,
            )
    for form, more in (("json", {}), ("base64", {"encoding": "base64"}), ("a file", {})):
        headers = {"accept": FILE} if form == "a file" else {}
        yield Largest(
            form,
            "/v1/maxsim",
            SEQUENCES - 1,
            lambda count, m=more: {"query": "a", "documents": letters(count), **m},
            headers,
            "late",
        )
    yield Largest(
        "many texts",
        "/v1/classify",
        SEQUENCES,
        lambda count: {"inputs": letters(count // 2), "labels": ["a", "b"]},
        model="entailment",
    )
    yield Largest(
        "many labels",
        "/v1/classify",
        SEQUENCES,
        lambda count: {"inputs": ["a"], "labels": [f"l{n}" for n in range(count)]},
        model="entailment",
    )
    yield Largest(
        "many texts, reason",
        "/v1/classify",
        EXPLAINED,
        lambda count: {"inputs": letters(count // 2), "labels": ["a", "b"], "reason": {}},
        model="entailment",
    )
    yield Largest(
        "many labels, reason",
        "/v1/classify",
        EXPLAINED,
        lambda count: {"inputs": ["a"], "labels": [f"l{n}" for n in range(count)], "reason": {}},
        model="entailment",
    )
    yield Largest(
        "",
        "/v1/ranking",
        SEQUENCES,
        lambda count: {
            "model": MODEL,
            "query": {"text": "a"},
            "passages": [{"text": text} for text in letters(count)],
        },
        model="reranker",
    )
    documents = {"/rerank": "texts", "/v1/rerank": "documents", "/v2/rerank": "documents"}
    for path, field in documents.items():
        yield Largest(
            "",
            path,
            SEQUENCES,
            lambda count, f=field: {"query": "a", f: letters(count)},
            model="reranker",
        )
    yield Largest(
        "with documents",
        "/v1/rerank",
        SEQUENCES,
        lambda count: {
            "query": "a",
            "documents": [{"text": text} for text in letters(count)],
            "return_documents": True,
        },
        model="reranker",
    )
    for path in ("/v1/rerank", "/v2/rerank"):
        yield Largest(
            "reason",
            path,
            EXPLAINED,
            lambda count: {"query": "a", "documents": letters(count), "reason": {}},
            model="reranker",
        )
    yield Largest(
        "of documents",
        "/rerank",
        SEQUENCES,
        lambda count: {"query": "a", "documents": letters(count)},
        model="reranker",
    )
    yield Largest(
        "with texts",
        "/rerank",
        SEQUENCES,
        lambda count: {"query": "a", "texts": letters(count), "return_text": True},
        model="reranker",
    )
    yield Largest(
        "",
        "/predict",
        SEQUENCES,
        lambda count: {"inputs": [[text] for text in letters(count)]},
        model="entailment",
    )
    yield Largest(
        "pairs",
        "/predict",
        SEQUENCES,
        lambda count: {"inputs": [[text, "b"] for text in letters(count)]},
        model="entailment",
    )
    yield Largest(
        "",
        "/embed_sparse",
        SEQUENCES // 16,
        lambda count: {"inputs": letters(count)},
        model="sparse",
    )
    for form in ("classify", "label_tokens", "sparse", "multi_vector"):
        model = {
            "classify": "entailment",
            "label_tokens": "tagger",
            "sparse": "sparse",
            "multi_vector": "late",
        }[form]
        most = SEQUENCES // 16 if form == "sparse" else SEQUENCES
        for written, headers in (("", {}), (", a file", {"accept": FILE})):
            yield Largest(
                form + written,
                "/v1/encode",
                most,
                inputs(pooled=False, **{form: True}),
                headers,
                model,
            )
    for form, model in (("classify", "entailment"), ("label_tokens", "tagger")):
        for length in (1, 16):
            yield Largest(
                f"{form}, reason, of {length} words",
                "/v1/encode",
                EXPLAINED,
                lambda count, f=form, n=length: {
                    "inputs": [words(n)] * count,
                    "pooled": False,
                    f: True,
                    "reason": {},
                },
                model=model,
            )


def decided() -> Iterator[Largest]:
    """POST /v1/systemone and /v1/decisions: many questions, and many options of each."""
    state = words(LONG)

    def by_name(count: int, options: int) -> Any:
        asked = {"type": "choice", "instructions": "a", "criteria": dict.fromkeys(letters(options))}
        return {"state": state, "questions": {f"q{number}": asked for number in range(count)}}

    def in_order(count: int, options: int) -> Any:
        choices = [{"value": text} for text in letters(options)]
        asked = {"type": "choice", "instructions": "a", "choices": choices}
        return {"input": state, "questions": [asked] * count}

    for path, make in (("/v1/systemone", by_name), ("/v1/decisions", in_order)):
        for options in (2, 26):
            yield Largest(
                f"{options} options",
                path,
                QUESTIONS,
                lambda count, m=make, o=options: m(count, o),
                model="decider",
            )
    yield Largest(
        "a file",
        "/v1/systemone",
        QUESTIONS,
        lambda count: by_name(count, 2) | {"attention": {}},
        {"accept": FILE},
        "decider",
    )


def foreign() -> Iterator[Largest]:
    """The routes of other APIs that embed."""
    for path in ("/v1/embeddings", "/embeddings"):
        for form in ("float", "base64"):
            yield Largest(
                form,
                path,
                SEQUENCES,
                lambda count, f=form: {
                    "model": MODEL,
                    "input": letters(count),
                    "encoding_format": f,
                },
            )
        yield Largest(
            "ids", path, SEQUENCES, lambda count: {"model": MODEL, "input": [[1037] * 140] * count}
        )
        yield Largest(
            "ids of one", path, 65_536, lambda count: {"model": MODEL, "input": [1037] * count}
        )
    for path in ("/", "/embed", "/embed_all"):
        yield Largest("", path, SEQUENCES // 2 if path == "/embed_all" else SEQUENCES, inputs())
    yield Largest(
        "",
        "/similarity",
        SEQUENCES - 1,
        lambda count: {"inputs": {"source_sentence": "a", "sentences": letters(count)}},
    )
    types = ["float", "int8", "uint8", "binary", "ubinary"]
    yield Largest(
        "all types",
        "/v2/embed",
        SEQUENCES,
        lambda count: {
            "model": MODEL,
            "texts": letters(count),
            "input_type": "classification",
            "embedding_types": types,
        },
    )
    yield Largest("texts", "/tokenize", SEQUENCES, inputs())
    yield Largest("a long text", "/tokenize", 250_000, lambda count: {"inputs": words(count // 2)})
    yield Largest("long texts", "/tokenize", 7, lambda count: {"inputs": [words(42_000)] * count})
    yield Largest("ids of one", "/decode", TOKENS, lambda count: {"ids": [1037] * count})
    yield Largest("sequences", "/decode", SEQUENCES, lambda count: {"ids": [[1037] * 140] * count})
    for path in (INFER, VERSIONED):
        for output in ("pooled", "tokens", "layers", "attention"):
            most = {"pooled": SEQUENCES, "tokens": SEQUENCES // 2, "layers": SEQUENCES // 8}.get(
                output, SEQUENCES
            )
            for as_bytes in (False, True):
                yield Largest(
                    f"{output}{', binary' * as_bytes}",
                    path,
                    most,
                    lambda count, o=output, b=as_bytes: {
                        "inputs": [tensor("text", "BYTES", [count], letters(count))],
                        "outputs": [{"name": o, "parameters": {"binary_data": b}}],
                    },
                )
        yield Largest(
            "ids",
            path,
            SEQUENCES,
            lambda count: {
                "inputs": [tensor("input_ids", "INT64", [count, 140], [1037] * count * 140)]
            },
        )
        yield Largest(
            "embeddings",
            path,
            900,
            lambda count: {
                "inputs": [tensor("inputs_embeds", "FP32", [count, 1, 384], [0.1] * count * 384)]
            },
        )
        yield Largest(
            "binary ids",
            path,
            SEQUENCES,
            binary,
            raw=lambda count: np.full((count, 140), 1037, "<i8").tobytes(),
        )


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> Any:
    """A tensor of the Open Inference Protocol."""
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def binary(count: int) -> Any:
    """The JSON of token ids as bytes, 140 of each sequence."""
    given = {"name": "input_ids", "datatype": "INT64", "shape": [count, 140]}
    return {"inputs": [{**given, "parameters": {"binary_data_size": count * 140 * 8}}]}


def taught() -> Iterator[Largest]:
    """POST /v1/attend and /v1/explain."""

    def square(side: int) -> list[list[float]]:
        """Vectors of half ones."""
        return [[0.5] * 16] * side

    yield Largest(
        "",
        "/v1/attend",
        1024,
        lambda count: {
            "query": square(count),
            "key": square(count),
            "value": square(count),
            "heads": 1,
        },
    )
    yield Largest(
        "scores",
        "/v1/attend",
        500,
        lambda count: {"scores": [[0.5] * count] * count, "value": [[0.5]] * count},
    )
    for layer in (0, 5):
        yield Largest(
            f"layer {layer}",
            "/v1/explain",
            LONG,
            lambda count, n=layer: {"text": words(count), "layer": n},
        )


def read() -> Iterator[Largest]:
    """Every GET, which has no body."""
    for route in ROUTES:
        if route.method == "get":
            yield Largest("", route.path, method="get")


def every() -> list[Largest]:
    """All of them."""
    asked = encoded(), compared(), judged(), decided(), foreign(), taught(), read()
    return [each for every in asked for each in every]
