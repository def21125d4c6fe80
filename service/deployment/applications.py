"""The applications of a Serve file that are ours, with their settings settled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from service import settings
from service.app import DEPLOYMENT, ELSEWHERE
from service.cluster import ingress
from service.deployment import faults
from service.deployment.faults import Fault
from service.settings import PREFIX, Settings
from service.wording.fault import Loc
from service.wording.words import meant

BUILDER = "service.app:build"


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
        """How many replicas there are at the least and at the most."""
        fixed = self.options.get("num_replicas")
        if isinstance(fixed, int):
            return fixed, fixed
        return self.settings.fewest, self.settings.most

    @property
    def actor(self) -> dict[str, Any]:
        """What the file says that a replica takes of its node."""
        return self.options.get("ray_actor_options") or {}

    @property
    def connections(self) -> int:
        """Connections that all its replicas may hold."""
        return ingress.ongoing(self.settings) * self.replicas[1]


def read(
    value: dict[str, Any], environ: Mapping[str, str]
) -> tuple[list[Application], list[Fault]]:
    """Read the applications of a file, and what is wrong with them.

    Args:
        value: the file as schema.plain has it.
        environ: the variables of the nodes, as far as they are known.
    """
    ours, wrong = list[Application](), list[Fault]()
    for index, application in enumerate(value["applications"]):
        loc: Loc = ("applications", index)
        if application["import_path"] != BUILDER:
            wrong += _foreign((*loc, "import_path"), application["import_path"])
            continue
        known = {**environ, **_variables(application)}
        found = _settled(application.get("args") or {}, known, (*loc, "args"))
        wrong += [*_named(application, loc), *(found if isinstance(found, list) else ())]
        if isinstance(found, Settings):
            options = (application.get("deployments") or [{}])[0]
            ours.append(Application(loc, application.get("name", "default"), options, found))
    if not ours and not wrong:
        text = f"no application is Headlight's; import_path is {BUILDER}"
        wrong.append(Fault(("applications",), text))
    return ours, wrong


def _variables(application: dict[str, Any]) -> dict[str, str]:
    """Those that only its replicas have; rules.py refuses what is no text."""
    given = (application.get("runtime_env") or {}).get("env_vars")
    given = given if isinstance(given, dict) else {}
    return {name: value for name, value in given.items() if isinstance(value, str)}


def _foreign(loc: Loc, path: str) -> Iterator[Fault]:
    """An application of somebody else, unless ours is meant."""
    if meant(path, [BUILDER]) or path.partition(":")[0].partition(".")[0] == "service":
        yield Fault(loc, f"{path!r} is not there; write {BUILDER}")


def _named(application: dict[str, Any], loc: Loc) -> Iterator[Fault]:
    """Deployments of other names than ours, which has one."""
    for index, deployment in enumerate(application.get("deployments") or []):
        if deployment["name"] != DEPLOYMENT or index:
            at = (*loc, "deployments", index, "name")
            yield Fault(at, f"the one deployment of {BUILDER} is {DEPLOYMENT}; write that, once")


def _settled(args: dict[str, Any], environ: Mapping[str, str], loc: Loc) -> Settings | list[Fault]:
    """The settings of an application, or what is wrong with them."""
    misplaced = sorted(args.keys() & ELSEWHERE.keys())
    wrong = [Fault((*loc, name), f"not here but in {ELSEWHERE[name]}") for name in misplaced]
    try:
        given = Settings.model_validate(args)
        if given.api_keys_file and not given.api_keys_file.is_absolute():
            text = "each replica's node has its own; write an absolute path"
            wrong.append(Fault((*loc, "api_keys_file"), text))
        named = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
        loaded = settings.load(args, named)
    except ValidationError as error:
        errors = (each for each in error.errors() if each["loc"][0] not in misplaced)
        return wrong + [_setting(each, args, loc) for each in errors]
    except ValueError as error:
        return [*wrong, Fault(loc, str(error))]
    return wrong or loaded


def _setting(error: ErrorDetails, args: dict[str, Any], loc: Loc) -> Fault:
    """What is wrong with one setting, at its key if the file has it."""
    name, text = faults.setting(error)
    there = error["loc"][0] in args
    return Fault((*loc, *error["loc"]), text) if there else Fault(loc, f"{name}: {text}")
