"""Which model a request goes to, where one address has several: what the rules of HAProxy need.

Each model is an application of Ray Serve's, below a prefix of its own; one may stand at the root.
Ray's configuration knows applications, prefixes and replicas. What their models are called, the
replicas say themselves (`NAMES`): each is asked once, when HAProxy is first told of it, so that a
model that is added, removed or renamed is chosen as its replicas come and go, on any node.

A request below a prefix goes there. Any other goes where the first of these leads that it has:

    `model` of its JSON body, as far as HAProxy's buffer holds it
    the header x-headlight-model
    the path of the Open Inference Protocol, /v2/models/{model}/..
    a path that only one of the models can answer, such as /rerank

and else to the model at the root. So does what names a model that no application has: its replica
refuses it with the names that there are. These HAProxy tells each replica that it leads to, for no
replica answers for a model that is not its own: each checks the name, as it reads it.

Only the standard library: HAProxy waits for this at every start and reload.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

NAMES = "/-/names"  # a replica's own path, which HAProxy does not lead to
MODEL_HEADER = "x-headlight-model"
NAMES_HEADER = "x-headlight-names"  # all names, where a request may name any
# All models and whether each answers, where a replica is to speak for them: its value is read by
# `read_models`
MODELS_HEADER = "x-headlight-models"
UNSAID = "*"  # last among the names: a model has not started yet, and none knows what it is called
FORWARDED_HEADER = "x-headlight-forwarded"  # marks what a replica has sent on (door/forward.py)
# How paths of routes, of Ray and of ours begin: below such a prefix a model would hide them
TAKEN = frozenset(
    (
        *("-", "decode", "docs", "embed", "embed_all", "embed_sparse", "embeddings", "health"),
        *("info", "live", "metrics", "models", "openapi.json", "page", "predict", "ready"),
        *("rerank", "similarity", "tokenize", "v1", "v2"),
    )
)
ASK_SECONDS = 1.0
ANSWERS_FILE = "names.json"  # what replicas have said
MODELS_MAP, PATHS_MAP = "models.map", "paths.map"
SAID = "names", "paths", "tasks", "released"  # what a replica says, see `Served`
UNREADABLE = ValueError, LookupError, TypeError, AttributeError  # of what is no answer of ours
LATEST = ":latest"
# In the map, names without an organisation also stand behind this: they are found under any
ANY_ORGANISATION = "*/"
PREFIX_RULE = re.compile(r"    acl is_(\S+) path (/\S*)$", re.MULTILINE)
SERVER = re.compile(r"^    server (\S+) (\S+):(\d+) check(?! backup)", re.MULTILINE)


class Backend(NamedTuple):
    """An application as HAProxy knows it.

    Args:
        name: of the backend.
        prefix: below which it is mounted, / for the root.
        servers: the addresses of its replicas, by name.
    """

    name: str
    prefix: str
    servers: Mapping[str, tuple[str, int]]


class Served(NamedTuple):
    """The model of a backend.

    Args:
        names: what requests may call it.
        paths: which it answers and not every model does.
        tasks: what it can do.
        released: the dates of its weights, one.
        alive: whether any of its replicas has answered.
    """

    backend: Backend
    names: Sequence[str]
    paths: Sequence[str]
    tasks: Sequence[str]
    released: Sequence[str]
    alive: bool

    @property
    def servers(self) -> str:
        """Return HAProxy's words for how many of its replicas answer."""
        return f"nbsrv({self.backend.name})" if self.alive else "int(0)"

    def describe(self) -> str:
        """Return its part of the header that lists all models."""
        name = self.names[0] if self.names else self.backend.prefix.strip("/") or self.backend.name
        words = (
            quote(name, safe=""),
            quote(self.backend.prefix, safe="/"),
            "+".join(self.tasks),
            quote("".join(self.released[:1])),
        )
        return " ".join(words).replace("%", "%%") + f" %[{self.servers}]"


class Told(NamedTuple):
    """A model of this address, as HAProxy tells a replica.

    Args:
        name: by which requests may name it.
        prefix: below which it is mounted.
        tasks: what it can do; empty until one of its replicas has said so.
        released: the date of its weights; empty likewise.
        answers: whether any of its replicas does.
    """

    name: str
    prefix: str
    tasks: Sequence[str]
    released: str
    answers: bool


def read_sections(config: str) -> dict[str, str]:
    """Return the lines of each section of a configuration, by the section's first line."""
    parts = re.split(r"^(?=[^\s#])", config, flags=re.MULTILINE)
    return {title: lines for title, _, lines in (part.partition("\n") for part in parts)}


def read_backends(sections: Mapping[str, str]) -> list[Backend]:
    """Return the applications in a configuration that Ray wrote, in its order.

    Raises:
        KeyError: a section is missing.
    """
    return [
        Backend(name, prefix, {server: (host, int(port)) for server, host, port in servers})
        for name, prefix in PREFIX_RULE.findall(sections["frontend http_frontend"])
        for servers in [SERVER.findall(sections[f"backend {name}"])]
    ]


def find_served(backends: Iterable[Backend], folder: Path) -> list[Served]:
    """Return the models of some backends, and remember what their replicas say.

    A backend without a replica keeps its names, so that requests for its model are answered 503
    until it has one again, and not 404.

    Args:
        folder: where the answers are kept from one reload to the next.
    """
    file = folder / ANSWERS_FILE
    known = dict[str, dict[str, list[str]]]()  # where it cannot be read, all are asked
    with suppress(OSError, *UNREADABLE):
        known = {name: _read_answer(said) for name, said in json.loads(file.read_bytes()).items()}
    kept, found = dict[str, dict[str, list[str]]](), list[Served]()
    for backend in backends:
        answers = {
            server: answer
            for server, (host, port) in backend.servers.items()
            if (answer := known.get(server) or ask_replica(host, port))
        }
        last = {backend.name: known[backend.name]} if backend.name in known else {}
        said = {
            kind: list(dict.fromkeys(chain(*(each[kind] for each in (answers or last).values()))))
            for kind in SAID
        }
        kept |= answers | {backend.name: said}
        found.append(Served(backend, **said, alive=bool(answers)))
    replace_file(file, json.dumps(kept))
    return found


def ask_replica(host: str, port: int) -> dict[str, list[str]] | None:
    """Return what a replica says of its model; None if it does not answer, or is not ours."""
    with (
        closing(HTTPConnection(host, port, timeout=ASK_SECONDS)) as connection,
        suppress(OSError, HTTPException, *UNREADABLE),
    ):
        connection.request("GET", NAMES)
        answer = connection.getresponse()
        if answer.status == 200:
            return _read_answer(json.load(answer))
    return None


def _read_answer(said: Mapping[str, Sequence[object]]) -> dict[str, list[str]]:
    """Return what a replica says; raises one of UNREADABLE where it is no answer of ours."""
    return {kind: list(map(str, said[kind])) for kind in SAID}


def replace_file(file: Path, text: str) -> bool:
    """Write a file whole or not at all; tell whether it is written, and on stderr why not.

    A full disk, which may have no room for that line either, ends no reload.
    """
    new = file.with_name(f"{file.name}.new")
    try:
        new.write_text(text)
        new.replace(file)
    except OSError as error:
        with suppress(OSError):
            print(f"headlight: {file} stays as it was: {error.strerror}", file=sys.stderr)
        return False
    return True


def write_maps(served: Iterable[Served], folder: Path) -> None:
    """Write the files by which HAProxy finds a model's prefix, by its names and by paths.

    Where they cannot be written the last ones hold.
    """
    prefixes, paths = dict[str, str](), dict[str, set[str]]()
    for model in served:
        prefix = model.backend.prefix
        for name in model.names:
            for key in _spellings(name):
                prefixes.setdefault(key, prefix)
        for path in model.paths:
            paths.setdefault(path, set()).add(prefix)
    only = {path: prefix for path, (prefix, *others) in paths.items() if not others}
    for name, table in ((MODELS_MAP, prefixes), (PATHS_MAP, only)):
        replace_file(folder / name, "".join(f"{key} {value}\n" for key, value in table.items()))


def _spellings(name: str) -> list[str]:
    """Return the keys of the map under which requests find a name; none for one with a blank."""
    name = name.lower()
    organisation, _, bare = name.rpartition("/")
    keys = [name, bare] if organisation else [name, ANY_ORGANISATION + name]
    return [] if re.search(r"\s", name) else [key + end for key in keys for end in ("", LATEST)]


def choose_model(backends: Sequence[Backend], folder: Path) -> dict[str, object]:
    """Return what `haproxy.cfg.tmpl` lacks to choose one of several models.

    Args:
        folder: of the configuration; the rules read maps that are written there, or were once.
    """
    served = find_served(backends, folder) if len(backends) > 1 else []
    if served:
        write_maps(served, folder)
    models, paths = folder / MODELS_MAP, folder / PATHS_MAP
    root_first = sorted(served, key=lambda model: model.backend.prefix != "/")
    names = [name for model in root_first for name in model.names]
    if not all(model.names for model in served):
        names.append(UNSAID)
    return {
        # maps never written: prefixes lead to all models, and to the root all else
        "several": int(bool(served) and models.exists() and paths.exists()),
        "models_map": models,
        "paths_map": paths,
        "below": " or ".join(f"is_{m.backend.name}" for m in served if m.backend.prefix != "/"),
        "names": quote(", ".join(names), safe=",/:@").replace("%", "%%"),  # HAProxy's own sign, too
        "models": ", ".join(model.describe() for model in root_first),
        "ready_rules": "\n".join(_ready_rules(root_first)),
    }


def _ready_rules(root_first: Sequence[Served]) -> list[str]:
    """Return the rules by which another model, without the root's, says that all are ready."""
    root = [model for model in root_first if model.backend.prefix == "/"]
    lost = "".join(f" !{{ {model.servers} gt 0 }}" for model in root)
    return [
        f"    http-request set-path {model.backend.prefix}%[path]"
        f" if !is_below !is_named asks_readiness{lost} {{ {model.servers} gt 0 }}"
        for model in root_first[len(root) :]
    ]


def read_models(header: str) -> list[Told]:
    """Return the models in a header that these rules have set; none where it is empty."""
    parts = [part.split(" ") for part in header.split(", ") if part]
    return [
        Told(unquote(name), unquote(prefix), tasks.split("+") if tasks else [], date, count != "0")
        for name, prefix, tasks, date, count in parts
    ]


def read_names(header: str) -> list[str]:
    """Return the names in a header that these rules have set."""
    return [name for name in unquote(header).split(", ") if name != UNSAID]


def lacks_names(header: str) -> bool:
    """Tell whether a header that these rules have set lacks the names of a model that starts."""
    return unquote(header).endswith(UNSAID)
