"""What could hurt others if it were taken on trust: one request each, as data.

Every route that reads such a body gets the same attack in its own dialect. None may stop the
event loop, grow the process or change what is answered next (tests/ray/test_door.py).
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

KIB, MIB = 1024, 1024 * 1024
ROOM = 2 * MIB - 4 * KIB  # of a JSON body, less what stands around an attack
MODEL = "/v2/models/all-MiniLM-L6-v2/infer"
JSON, FILE = "application/json", "application/vnd.safetensors"


class Attack(NamedTuple):
    """One request.

    Args:
        statuses: what it may be answered.
        legal: whether it is a large request that is served, rather than a bad one.
        full: whether it holds as many values as its body has room for.
    """

    name: str
    path: str
    body: Callable[[], bytes]
    statuses: tuple[int, ...]
    headers: dict[str, str]
    legal: bool = False
    full: bool = False


HERE = "<here>"  # in a body: where the attack stands


def many(text: str, room: int = ROOM, most: int = ROOM) -> str:
    """As many of a value as a body holds, as a list; or fewer."""
    return "[" + ",".join([text] * min(most, room // (len(text) + 1))) + "]"


def keys(most: int = ROOM // 10) -> str:
    """An object of so many fields, or as many as a body holds, none twice."""
    return "{" + ",".join(f'"{number:x}":0' for number in range(most)) + "}"


# where a list stands in each route's body
LISTS = {
    "/v1/encode": '{"inputs":<here>}',
    "/v1/attend": '{"query":<here>,"key":[[1]],"value":[[1]],"heads":1}',
    "/v1/explain": '{"text":"a","layer":<here>}',
    "/v1/embeddings": '{"model":"all-MiniLM-L6-v2","input":<here>}',
    "/embed": '{"inputs":<here>}',
    "/embed_all": '{"inputs":<here>}',
    "/similarity": '{"inputs":{"source_sentence":"a","sentences":<here>}}',
    "/tokenize": '{"inputs":<here>}',
    "/decode": '{"ids":<here>}',
    MODEL: '{"inputs":<here>}',
}
# lists elsewhere than at the inputs
PLACES = {
    "shape": (
        "/v1/encode",
        '{"inputs":[{"embeddings":{"shape":<here>,"dtype":"float32","data":""}}]}',
    ),
    "token ids": ("/v1/encode", '{"inputs":[{"token_ids":<here>}]}'),
    "types": ("/v1/encode", '{"inputs":[{"token_ids":[1],"token_type_ids":<here>}]}'),
    "embeddings": ("/v1/encode", '{"inputs":[{"embeddings":<here>}]}'),
    "layers": ("/v1/encode", '{"inputs":["a"],"layers":<here>}'),
    "heads": ("/v1/encode", '{"inputs":["a"],"attention":{"layers":[0],"heads":<here>}}'),
    "rows": ("/v1/encode", '{"inputs":["a"],"attention":{"form":"rows","rows":<here>}}'),
    "gates": ("/v1/encode", '{"inputs":["a"],"gates":<here>}'),
    "mask": ("/v1/attend", '{"query":[[1]],"key":[[1]],"value":[[1]],"heads":1,"mask":<here>}'),
    "oip shape": (
        MODEL,
        '{"inputs":[{"name":"text","datatype":"BYTES","data":["a"],"shape":<here>}]}',
    ),
    "oip data": (
        MODEL,
        '{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":<here>}]}',
    ),
    "oip ids": (
        MODEL,
        '{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[1],"data":<here>}]}',
    ),
    "oip outputs": (
        MODEL,
        '{"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["a"]}],"outputs":<here>}',
    ),
}
VALUES = {"objects": "{}", "strings": '""', "ones": "1", "lists": "[]"}
# the same, as many as service/door/body.py lets through
WITHIN = {
    "10,000 objects": ("{}", 10_000),
    "10,000 texts": ('{"text":"a","pair":"b"}', 10_000),
    "40,000 strings": ('"a"', 40_000),
    "620,000 ones": ("1", 620_000),
    "500,000 fractions": ("0.1", 500_000),
    "400,000 nulls": ("null", 400_000),
    "43,000 lists": ("[]", 43_000),
    "43,000 lists of one": ("[1]", 43_000),
    "43,000 rows": ("[" + ",".join(["1"] * 13) + "]", 43_000),
    "600 lists of fractions": ("[" + ",".join(["0.1"] * 800) + "]", 600),
    "500 objects of 60 fields": (keys(60), 500),
}
BAD = (400, 413, 422)


def structures() -> Iterator[Attack]:
    """Lists and objects of as many values as fit, at every place that takes a list."""
    places = {path: (path, body) for path, body in LISTS.items()} | PLACES
    for place, (path, body) in places.items():
        for kind, value in VALUES.items():
            yield _json(
                f"{place} of {kind}",
                path,
                lambda b=body, v=value: b.replace(HERE, many(v)),
                full=True,
            )
        for kind, (value, most) in WITHIN.items():
            yield _json(
                f"{place} of {kind}",
                path,
                lambda b=body, v=value, m=most: b.replace(HERE, many(v, most=m)),
                (200, *BAD),
                legal=True,
            )
        yield _json(f"{place} as fields", path, lambda b=body: b.replace(HERE, keys()), full=True)
        yield _json(f"{place} as 64 fields", path, lambda b=body: b.replace(HERE, keys(64)))
    for path in LISTS:
        yield _json(f"{path} is fields", path, keys, full=True)
    inputs = LISTS["/v1/encode"]
    for kind, value in VALUES.items():
        whole = inputs.replace(HERE, many(value))
        announced = {"inference-header-content-length": str(len(whole))}
        yield Attack(
            f"binary of {kind}", MODEL, lambda r=whole: r.encode(), BAD, announced, full=True
        )


def wide() -> Iterator[Attack]:
    """Arrays of numbers that are read before they are found not to fit."""
    for rows, columns in ((14_000, 17), (17, 14_000), (500, 500)):
        array = json.dumps([[1] * columns] * rows, separators=(",", ":"))
        for name, path, body in (
            ("embeddings", "/v1/encode", '{"inputs":[{"embeddings":<here>}]}'),
            ("queries", "/v1/attend", '{"query":<here>,"key":<here>,"value":[[1]]}'),
            ("scores", "/v1/attend", '{"scores":<here>,"value":[[1]]}'),
            (
                "tensor",
                MODEL,
                '{"inputs":[{"name":"input_ids","datatype":"INT64",'
                f'"shape":[{rows},{columns}],"data":<here>}}]}}',
            ),
        ):
            yield _json(
                f"{name} of {rows} x {columns}",
                path,
                lambda b=body, a=array: b.replace(HERE, a, 1).replace(HERE, "[[1]]"),
                (200, *BAD),
                legal=True,
            )


def answers() -> Iterator[Attack]:
    """Requests that are small compared with what they ask for."""
    ids: dict[str, Any] = {"inputs": [{"token_ids": [7] * 256}] * 100}
    shown: dict[str, dict[str, Any]] = {
        "tokens": {"tokens": True},
        "layers": {"layers": list(range(7))},
        "both": {"tokens": True, "layers": list(range(7))},
    }
    for name, wanted in shown.items():
        forms: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
            "json": ({}, {}),
            "base64": ({"encoding": "base64"}, {}),
            "a file": ({}, {"accept": FILE}),
        }
        for form, (more, headers) in forms.items():
            legal = name == "tokens" and form != "json"  # 37.5 MiB of arrays
            statuses = (200, 422) if legal else (413,)  # where it can be done in time
            body = _dumps({**ids, **wanted, **more})
            yield _json(f"{name} as {form}", "/v1/encode", body, statuses, headers, legal)
    texts = [" ".join(["well"] * 240)] * 200
    yield _json("every token of TEI", "/embed_all", _dumps({"inputs": texts}), (413,))
    tensor = {"name": "text", "datatype": "BYTES", "shape": [200], "data": texts}
    for output in ("tokens", "layers"):
        for binary in (False, True):
            wanted = {"name": output, "parameters": {"binary_data": binary}}
            body = {"inputs": [tensor], "outputs": [wanted]}
            yield _json(f"OIP {output}, binary {binary}", MODEL, _dumps(body), (413,))


def texts() -> Iterator[Attack]:
    """Texts of which little is kept."""
    for name, text in (
        ("dots", "." * 250_000),
        ("word", "a" * 250_000),
        ("words", "well " * 50_000),
        ("signs", "\u4e00" * 80_000),
    ):
        eight = [text] * (8 if len(text.encode()) * 8 < ROOM else 4)
        statuses = (200, 413, 422)
        native = {"inputs": eight, "truncate": "right"}
        yield _json(f"cut {name}", "/v1/encode", _dumps(native), statuses, legal=True)
        tei = {"inputs": eight, "truncate": True}
        yield _json(f"TEI cut {name}", "/embed", _dumps(tei), statuses, legal=True)
        for path in ("/embed", "/tokenize", "/embed_all"):
            # by default, as TEI does; and a word of any length is one token, the unknown one
            legal = path != "/tokenize" or name == "word"
            yield _json(f"{path} {name}", path, _dumps({"inputs": eight}), statuses, legal=legal)
        openai = {"model": "all-MiniLM-L6-v2", "input": eight}
        yield _json(
            f"OpenAI {name}",
            "/v1/embeddings",
            _dumps(openai),
            (200, 400, 413),
            legal=name == "word",
        )
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(eight)], "data": eight}
        oip = _dumps({"inputs": [tensor]})
        yield _json(f"OIP {name}", MODEL, oip, (200, 400, 413), legal=name == "word")


def every() -> list[Attack]:
    """All of them."""
    return [*structures(), *wide(), *answers(), *texts()]


def _dumps(body: object) -> Callable[[], str]:
    return lambda: json.dumps(body, ensure_ascii=False)


def _json(
    name: str,
    path: str,
    body: Callable[[], str],
    statuses: tuple[int, ...] = BAD,
    headers: dict[str, str] | None = None,
    legal: bool = False,
    full: bool = False,
) -> Attack:
    headers = {"content-type": JSON, **(headers or {})}
    return Attack(name, path, lambda: body().encode(), statuses, headers, legal, full)
