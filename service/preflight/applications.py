"""The applications of a Serve file that are ours, with their settings settled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service import settings
from service.cluster import ingress
from service.preflight.finding import Finding
from service.settings import PREFIX, Settings
from service.wording.words import Loc, meant

BUILDER = "service.app:build"

# What a Serve configuration says elsewhere, where Ray reads it
ELSEWHERE = {
    "host": "http_options.host",
    "port": "http_options.port",
    "replicas": "num_replicas of the deployment, or max_replicas here",
    "address": "the cluster that reads this file",
    "log_to_stderr": "logs/worker-*.out of each node",
    "tls_cert": "what ends TLS in front of the cluster",
    "tls_key": "what ends TLS in front of the cluster",
    "api_keys": "a file on the nodes that api_keys_file names",
}


@dataclass(frozen=True)
class Application:
    """One application of ours.

    Args:
        loc: where in the file.
        options: of its one deployment, as the file has them.
        settings: as its replicas will have them.
    """

    loc: Loc
    name: str
    options: dict[str, Any]
    settings: Settings

    def at(self, *keys: str) -> Loc:
        """Return the place of an option of the deployment."""
        return (*self.loc, "deployments", 0, *keys)

    @property
    def replicas(self) -> tuple[int, int]:
        """Return the minimum and maximum number of replicas."""
        fixed = self.options.get("num_replicas")
        if isinstance(fixed, int):
            return fixed, fixed
        return self.settings.fewest, self.settings.most

    @property
    def actor(self) -> dict[str, Any]:
        """Return what a replica takes from its node, by the file."""
        return self.options.get("ray_actor_options") or {}


def read(
    value: dict[str, Any], environ: Mapping[str, str]
) -> tuple[list[Application], list[Finding]]:
    """Read the applications of a file, and what is wrong with them.

    Args:
        value: the file as schema.plain has it.
        environ: the variables of the nodes, as far as they are known.
    """
    ours, wrong = list[Application](), list[Finding]()
    for index, application in enumerate(value["applications"]):
        loc: Loc = ("applications", index)
        path = application["import_path"]
        if path != BUILDER:
            if meant(path, [BUILDER]) or path.partition(":")[0].partition(".")[0] == "service":
                text = f"{path!r} is not there"
                wrong.append(Finding((*loc, "import_path"), text, f"write {BUILDER}"))
            continue
        given = (application.get("runtime_env") or {}).get("env_vars")
        own = given.items() if isinstance(given, dict) else ()
        known = {**environ, **{name: text for name, text in own if isinstance(text, str)}}
        found = _settled(application.get("args") or {}, known, (*loc, "args"))
        wrong += [*_named(application, loc), *(found if isinstance(found, list) else ())]
        if isinstance(found, Settings):
            options = (application.get("deployments") or [{}])[0]
            ours.append(Application(loc, application.get("name", "default"), options, found))
    if not ours and not wrong:
        text = f"no application is Headlight's; import_path is {BUILDER}"
        wrong.append(Finding(("applications",), text))
    return ours, wrong


def _named(application: dict[str, Any], loc: Loc) -> Iterator[Finding]:
    """Find deployments under names other than ours, which has only one."""
    for index, deployment in enumerate(application.get("deployments") or []):
        if deployment["name"] != ingress.DEPLOYMENT or index:
            at = (*loc, "deployments", index, "name")
            text = f"the one deployment of {BUILDER} is {ingress.DEPLOYMENT}"
            yield Finding(at, text, "write that, once")


def _settled(
    args: dict[str, Any], environ: Mapping[str, str], loc: Loc
) -> Settings | list[Finding]:
    """Settle the settings of an application, or say what is wrong with them."""
    misplaced = sorted(args.keys() & ELSEWHERE.keys())
    wrong = [Finding((*loc, name), f"not here but in {ELSEWHERE[name]}") for name in misplaced]
    try:
        given = Settings.model_validate(args)
        if (file := given.api_keys_file) and not file.is_absolute():
            text = "each replica's node has its own"
            wrong.append(Finding((*loc, "api_keys_file"), text, "write an absolute path"))
        named = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
        loaded = settings.load(args, named)
    except ValidationError as error:
        for each in error.errors():
            (name, text), (key, *_) = fault(each), each["loc"]
            if key in args and key not in misplaced:
                wrong.append(Finding((*loc, *each["loc"]), text))
            elif key not in args:  # it comes from a variable
                wrong.append(Finding(loc, f"{name}: {text}"))
        return wrong
    except ValueError as error:
        return [*wrong, Finding(loc, str(error))]
    return wrong or loaded


def fault(error: ErrorDetails) -> tuple[str, str]:
    """Return the name of a setting, and in words what is wrong with it."""
    name, _, text = settings.fault(error).partition(": ")
    unknown = error["type"] == "extra_forbidden"
    return name, text + (meant(name, Settings.model_fields) if unknown else "")
