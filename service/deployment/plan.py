"""The changes a Serve file would make on a cluster: applications added, changed, removed, left."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.preflight.applications import BUILDER
from service.preflight.document import leaves
from service.settings import Settings
from service.wording.words import Loc, place

ABSENT = object()  # what stands at a key that is not there
UNSAID = {"name": "default", "route_prefix": "/"}  # as Ray reads an application without them
# Texts that are shown; others, such as a variable or an address with a password, may be secret
SHOWN = Settings.model_fields.keys() - {"api_keys", "tracing"} | {
    "route_prefix",
    "import_path",
}


@dataclass(frozen=True)
class Plan:
    """The fate of each application, by its name.

    Args:
        added: with the path below which each will answer.
        changed: with a line for each key that changes.
        removed: with the path below which each answers now.
        left: as they are.
    """

    added: dict[str, str]
    changed: dict[str, list[str]]
    removed: dict[str, str]
    left: list[str]

    def lines(self) -> Iterator[str]:
        """Yield the plan in lines for people."""
        for name, path in self.added.items():
            yield f"adds {name} at {path}"
        for name, keys in self.changed.items():
            yield f"changes {name}: {'; '.join(keys)}"
        for name, path in self.removed.items():
            yield f"removes {name} at {path}, which the file does not name"
        for name in self.left:
            yield f"leaves {name} as it is"


def plan(value: Mapping[str, Any], before: Mapping[str, Any]) -> Plan:
    """Compare a file with what is deployed.

    Args:
        value: the file as schema.plain has it.
        before: what Ray says of each application, by its name.
    """
    # Ray gives the file's logging_config to each application without one, and reports it for each
    shared = value.get("logging_config")
    file = {
        each.get("name", "default"): each
        if each.get("logging_config") or not shared
        else {**each, "logging_config": shared}
        for each in value["applications"]
    }
    there = {name: each for name, each in before.items() if each.get("status") != "DELETING"}
    both = [name for name in file if name in there]
    changed = {name: list(_changes(there[name], file[name])) for name in both}
    return Plan(
        {name: _path(file[name]) for name in file if name not in there},
        {name: keys for name, keys in changed.items() if keys},
        # those of `serve.run`, and of `headlight serve`, Ray leaves where they are
        {
            name: _path(each)
            for name, each in sorted(there.items())
            if name not in file and each.get("source") != "imperative"
        },
        [name for name, keys in changed.items() if not keys],
    )


def _path(application: Mapping[str, Any]) -> str:
    return str(application.get("route_prefix") or "/")


def _changes(there: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield what changes in one application, a line per key."""
    deployed = there.get("deployed_app_config")
    if deployed is None:
        yield "what a program deployed gives way to the file"
        return
    ours = deployed.get("import_path") == new.get("import_path") == BUILDER
    old, now = dict(leaves({**UNSAID, **deployed})), dict(leaves({**UNSAID, **new}))
    for loc in [*now, *(loc for loc in old if loc not in now)]:
        before, after = old.get(loc, ABSENT), now.get(loc, ABSENT)
        if before != after:
            yield f"{place(loc)} {_shown(loc, before, ours)} -> {_shown(loc, after, ours)}"


def _shown(loc: Loc, value: Any, ours: bool) -> str:
    """Return a value if it cannot be a secret; any value handed to another program can be one."""
    if value is ABSENT:
        return "unset"
    if not ours and {"args", "user_config"} & set(loc):
        return "(not shown)"
    names = [part for part in loc if isinstance(part, str)]
    open_ = names[-1] in SHOWN and "runtime_env" not in names
    return str(value) if open_ or not isinstance(value, str) else "(not shown)"
