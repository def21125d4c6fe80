"""`headlight doctor --file`: what Ray accepts in silence is a line at its key."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main

LAPTOP = Path(__file__).parents[3] / "deploy" / "serve" / "laptop.yaml"
DEPLOYMENT = "applications[0].deployments[0]"
UNKNOWN = "Ray knows no such key, and would drop it"
ENVIRONMENT = "    runtime_env: {env_vars: {A: 1, B: x}}\n    args:"


def run(file: Path, *options: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["doctor", "--file", str(file), *options])


MISTAKES = {
    "at the top": ("proxy_location:", "proxy_locations:", f"proxy_locations  {UNKNOWN}"),
    "of the listener": ("  port: 8000", "  prot: 8000", f"http_options.prot  {UNKNOWN}"),
    "of an application": (
        "    route_prefix: /",
        "    route_prefx: /",
        f"applications[0].route_prefx  {UNKNOWN}",
    ),
    "of a deployment": ("num_replicas", "num_replica", f"{DEPLOYMENT}.num_replica  {UNKNOWN}"),
    "of a replica": ("num_cpus", "num_gpu", f"{DEPLOYMENT}.ray_actor_options.num_gpu  {UNKNOWN}"),
    "of a mapping that Ray takes as it is": (
        "num_replicas: 1",
        "autoscaling_config: {min_replica: 1}",
        f"{DEPLOYMENT}.autoscaling_config.min_replica  {UNKNOWN}",
    ),
    "of an environment": (
        "    args:",
        "    runtime_env: {env_var: {}}\n    args:",
        f"applications[0].runtime_env.env_var  {UNKNOWN}",
    ),
    "a variable that is a number": (
        "    args:",
        ENVIRONMENT,
        'applications[0].runtime_env.env_vars.A  is no string: write "1"',
    ),
    "a path of the model at the root": (
        "applications:",
        "applications:\n  - {name: b, route_prefix: /v1/b, import_path: service.app:build}",
        "applications[0].route_prefix  /v1/b hides paths of the application at /: choose another",
    ),
    "what Ray itself refuses": (
        "import_path: service.app:build",
        "import_paths: service.app:build",
        "applications[0].import_path  is missing",
    ),
}


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_line_at_its_key(old: str, new: str, said: str, tmp_path: Path) -> None:
    """And the exit status is 2."""
    file = tmp_path / "serve.yaml"
    file.write_text(LAPTOP.read_text().replace(old, new, 1))

    result = run(file)

    assert f"FAIL  {said}\n" in result.stdout and result.exit_code == 2


@pytest.mark.parametrize(
    "text",
    [
        "applications: [",
        "[" * 1000,
        "kind: RayService",
        "kind: RayService\nspec: [1]",
        "kind: RayService\nspec: {serveConfigV2: [1]}",
        "- a",
        "",
    ],
    ids=["no YAML", "deep", "no spec", "a list", "no text in it", "no mapping", "empty"],
)
def test_a_file_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    """In a line."""
    file = tmp_path / "serve.yaml"
    file.write_text(text)

    result = run(file)

    assert result.exit_code == 2 and result.stdout.startswith("FAIL  ")
    assert result.stdout.count("\n") == 1 and not result.stderr


def test_the_arguments_of_a_program_are_its_own(tmp_path: Path) -> None:
    """service.app:build refuses what it does not know."""
    file = tmp_path / "serve.yaml"
    file.write_text(LAPTOP.read_text().replace("threads: 1", "env_vars: {A: 1}", 1))

    assert run(file).exit_code == 0


def test_json_has_the_same_lines(tmp_path: Path) -> None:
    """One object."""
    file = tmp_path / "serve.yaml"
    file.write_text(LAPTOP.read_text().replace("num_cpus", "num_gpu", 1))

    (found,) = json.loads(run(file, "--json").stdout)["findings"]

    assert found["what"] == f"{DEPLOYMENT}.ray_actor_options.num_gpu"
    assert (found["grade"], found["fact"]) == ("FAIL", UNKNOWN)


def test_a_file_is_checked_alone() -> None:
    """The options of a start would change nothing."""
    result = run(LAPTOP, "--port", "8001")

    assert result.exit_code == 2 and "leave the other options out" in result.stderr
