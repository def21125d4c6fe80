"""What deploy/ holds is the code's, whole and safe; `python tests/test_deploy.py` writes it."""

import re
import shlex
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from service.cluster import ingress
from service.cluster.start_report import StartFailed
from service.preflight import variables
from service.tables.settings import Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SERVE = DEPLOY / "serve"
CONFIGURATIONS = ("laptop.yaml", "gpu.yaml", "two-models.yaml")

# The cluster that deploy/serve/ray.env starts: room for so many replicas, of all models
REPLICAS, DRAIN_SECONDS = 4, 25

# Where they lie: the folder, and in it what each of the others names
HAPROXY_FILES = {
    "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": "",
    "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": "haproxy.cfg",
    "RAY_SERVE_HAPROXY_SOCKET_PATH": "admin",
    "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": "state",
}


def ray_env() -> str:
    """The variables of a cluster, for a shell."""
    variables = ingress.cluster_variables(Settings(replicas=REPLICAS, drain_seconds=DRAIN_SECONDS))
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    found = f'{ingress.PROGRAM}="$(command -v {ingress.WRAPPER})"'  # Ray asks for the whole path
    folder, *names = HAPROXY_FILES
    files = [f'{folder}="$(mktemp -d /tmp/headlight.XXXXXX)"']
    files += [f'{name}="${folder}/{HAPROXY_FILES[name]}"' for name in names]
    return "".join(
        f"{line}\n"
        for line in (
            "# Each node's: set -a; . deploy/serve/ray.env; ray start ...",
            f"# Room for {REPLICAS} replicas; for each more, {ingress.HAPROXY_MAXCONN} grows by "
            f"{ingress.max_ongoing_requests(Settings())}.",
            "# HAProxy's files, in a folder that is this user's alone and has no known name",
            *files,
            *(found if line.startswith(ingress.PROGRAM) else line for line in lines),
        )
    )


GENERATED = {SERVE / "ray.env": ray_env}


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_what_is_generated_is_the_codes(path: Path) -> None:
    """Byte for byte."""
    assert path.read_text() == GENERATED[path]()


@pytest.fixture(scope="module")
def app() -> ModuleType:
    """service.app, whose import of Ray warns of Ray's own age."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from service import app
    return app


def applications(name: str) -> list[dict[str, Any]]:
    """The applications of a configuration, with settings as the builder reads them."""
    found: list[dict[str, Any]] = read(name)["applications"]
    return [{**each, "settings": Settings.model_validate(each["args"])} for each in found]


def read(name: str) -> dict[str, Any]:
    """A configuration."""
    loaded: dict[str, Any] = yaml.safe_load((SERVE / name).read_text())
    return loaded


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_ray_knows_every_key_of_a_configuration(name: str, app: ModuleType) -> None:
    """Ray itself drops one that it does not know."""
    from ray.serve.schema import ServeDeploySchema

    given = read(name)

    known = ServeDeploySchema.model_validate(given).model_dump(exclude_unset=True)

    assert unknown(given, known) == []


def unknown(given: Any, known: Any) -> list[str]:
    """The keys given that did not get through."""
    if isinstance(given, list):
        pairs = zip(given, known, strict=True)
        return [key for one, other in pairs for key in unknown(one, other)]
    if not isinstance(given, dict):
        return []
    lost = [key for key in given if key not in known]
    return lost + [key for k in given.keys() & known.keys() for key in unknown(given[k], known[k])]


def described(app: ModuleType, settings: Settings) -> Any:
    """Ray's deployment of the application that these settings describe."""
    return app.make_application(settings, tries=1)._bound_deployment


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_none_of_rays_dangerous_defaults_is_left(name: str, app: ModuleType) -> None:
    """Requests in and before a replica, the time one may take, and the bytes it may hold."""
    for application in applications(name):
        settings = application["settings"]
        deployment = described(app, settings)
        (listed,) = application["deployments"]

        assert deployment.name == listed["name"]
        assert deployment.max_ongoing_requests == settings.max_waiting_requests + 256
        assert deployment.max_queued_requests == deployment.max_ongoing_requests
        capacity = {"name", "num_replicas", "ray_actor_options", "max_replicas_per_node"}
        assert listed.keys() <= capacity, "none is overridden"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_cluster_of_ray_env_can_serve_it(name: str) -> None:
    """A replica of each, with what its settings need of the cluster."""
    lines = (SERVE / "ray.env").read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if not line.startswith("#"))
    environment = {key: "".join(shlex.split(value)) for key, value in pairs}
    environment[ingress.PROGRAM] = f"/usr/bin/{ingress.WRAPPER}"

    for application in applications(name):
        variables.require_variables(application["settings"], environment)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_who_stops_waits_longer_than_whom_it_stops(name: str, app: ModuleType) -> None:
    """A node for its replicas, a replica for its requests."""
    variables = ingress.cluster_variables(Settings())

    for application in applications(name):
        settings = application["settings"]
        node = float(variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
        leave = described(app, settings)._deployment_config.graceful_shutdown_timeout_s

        assert (node, leave, settings.deadline_seconds) == (90, 60, 30)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_replica_has_the_processors_it_was_promised(name: str) -> None:
    """Never as many threads as the machine has cores, which others use too."""
    for application in applications(name):
        threads = application["settings"].threads
        options = application["deployments"][0]["ray_actor_options"]

        assert threads is not None and threads <= options["num_cpus"]
        assert bool(options.get("num_gpus")) == (application["settings"].device == "cuda")


def test_a_container_that_takes_too_much_memory_is_its_own_fault() -> None:
    """Each of the compose file's has a limit, so that none takes the machine with it."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]

    assert all("mem_limit" in service for service in services.values())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            {"port": 9000, "replicas": 2},
            "args.port: not here but in http_options.port; args.replicas: not here but in num_",
        ),
        ({"thread": 1}, 'args.thread: no such setting; did you mean "threads"?'),
        ({"threads": 0}, "args.threads must be at least 1, got 0"),
        (
            {"max_replicas": 2, "min_replicas": 3},
            "args.min_replicas must be at most args.max_replicas",
        ),
    ],
    ids=["elsewhere", "unknown", "out of bounds", "of two"],
)
def test_what_a_configuration_cannot_say_is_refused(
    args: dict[str, Any], said: str, app: ModuleType
) -> None:
    """Each by name, before a replica starts."""
    with pytest.raises(StartFailed, match=f"^{re.escape(said)}[^\n]*$"):
        app.build(args)


def test_a_listener_with_tls_is_refused(monkeypatch: pytest.MonkeyPatch, app: ModuleType) -> None:
    """HAProxy would answer in clear text."""
    monkeypatch.setattr(app.cluster, "http_options", lambda: SimpleNamespace(ssl_keyfile="/key"))

    with pytest.raises(StartFailed, match="ssl_"):
        app.build({})


def test_every_file_the_page_names_is_there() -> None:
    """docs/deploy.md; its commands are run by tests/ray/test_deploy.py."""
    page = (ROOT / "docs" / "deploy.md").read_text()

    named = set(re.findall(r"(?<![/\w])(?:deploy|tests)/[\w./-]*\w", page))

    assert {
        f"deploy/serve/{name}" for name in ("ray.env", "laptop.yaml", "two-models.yaml")
    } < named
    assert all((ROOT / name).exists() for name in named), named


if __name__ == "__main__":
    for path, text in GENERATED.items():
        path.write_text(text())
