"""`headlight config check`: each mistake that a file of deploy/ may hold is one line, by name."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result
from pydantic import ValidationError
from ray.serve.schema import ApplicationDetails

from service.cli import main
from service.deployment import check
from service.preflight import schema
from tests.manifests import manifests

ROOT = Path(__file__).parent.parent.parent.parent
LAPTOP, GPU, TWO = "serve/laptop.yaml", "serve/gpu.yaml", "serve/two-models.yaml"
ENV, KUBERAY = "serve/ray.env", "rayservice.yaml"
REPLICAS = "        num_replicas: 1\n"


def content(name: str) -> str:
    """Return a file of deploy/, or what the chart renders."""
    return manifests()[name] if name == KUBERAY else (ROOT / "deploy" / name).read_text()


class Mistake(NamedTuple):
    """One change to a file, and what is said of it."""

    file: str
    old: str
    new: str
    said: str


KEY = "canary-Key_123456789"
APPLICATION = "applications[0]"
DEPLOYMENT = f"{APPLICATION}.deployments[0]"
ACTOR = f"{DEPLOYMENT}.ray_actor_options"
POD = "spec.rayClusterConfig.headGroupSpec.template.spec"

MISTAKES = {
    # keys that Ray drops without a word
    "deployment's key": Mistake(
        LAPTOP,
        "num_replicas: 1",
        "num_replica: 1",
        f'{DEPLOYMENT}.num_replica: Ray knows no such key; did you mean "num_replicas"?',
    ),
    "http_options' key": Mistake(
        LAPTOP,
        "  port: 8000",
        "  prot: 8000",
        'http_options.prot: Ray knows no such key; did you mean "port"?',
    ),
    "actor's key": Mistake(
        LAPTOP,
        "num_cpus: 1",
        "num_cpu: 1",
        f"{ACTOR}.num_cpu: Ray knows no such key; it knows accelerator_type, ",
    ),
    "limits in place": Mistake(
        LAPTOP,
        "        num_replicas: 1\n",
        "        num_replicas: 1\n        user_config: {max_sequences: 9}\n",
        f"{DEPLOYMENT}.user_config: leave it out; it comes from args, with which new replicas",
    ),
    "key at the top": Mistake(
        LAPTOP,
        "proxy_location:",
        "proxy_locations:",
        'proxy_locations: Ray knows no such key; did you mean "proxy_location"?',
    ),
    "application's key": Mistake(
        LAPTOP,
        "    route_prefix: /",
        "    route_prefx: /",
        f'{APPLICATION}.route_prefx: Ray knows no such key; did you mean "route_prefix"?',
    ),
    "autoscaling's key": Mistake(
        LAPTOP,
        REPLICAS,
        "        autoscaling_config: {min_replica: 1, max_replicas: 2}\n",
        f"{DEPLOYMENT}.autoscaling_config.min_replica: Ray knows no such key; did you mean",
    ),
    "retries of a start, which Ray reads in code alone": Mistake(
        LAPTOP,
        REPLICAS,
        f"{REPLICAS}        max_constructor_retry_count: 3\n",
        f"{DEPLOYMENT}.max_constructor_retry_count: Ray knows no such key; it knows",
    ),
    "a key twice": Mistake(
        LAPTOP,
        "      threads: 1\n",
        "      threads: 1\n      threads: 1\n",
        "not YAML: threads stands twice; leave one",
    ),
    "not YAML": Mistake(LAPTOP, "applications:", "applications: [", "not YAML: "),
    # bounds
    "no replica": Mistake(
        LAPTOP,
        "num_replicas: 1",
        "num_replicas: 0",
        f"{DEPLOYMENT}.num_replicas: Input should be greater than 0, not 0",
    ),
    "fewest above most": Mistake(
        LAPTOP,
        "      threads: 1\n",
        "      threads: 1\n      min_replicas: 3\n      max_replicas: 2\n",
        f"{APPLICATION}.args: min_replicas 3 must not be more than max_replicas, which is 2",
    ),
    "replicas in two places": Mistake(
        LAPTOP,
        "      threads: 1\n",
        "      threads: 1\n      max_replicas: 2\n",
        f"{DEPLOYMENT}.num_replicas: leave it out; with max_replicas in args",
    ),
    "replicas of Ray's choice": Mistake(
        LAPTOP,
        REPLICAS,
        "        num_replicas: auto\n",
        f"{DEPLOYMENT}.num_replicas: not auto; write max_replicas in args",
    ),
    "no number of JSON": Mistake(
        LAPTOP,
        REPLICAS,
        f"{REPLICAS}        graceful_shutdown_timeout_s: .inf\n",
        f"{DEPLOYMENT}.graceful_shutdown_timeout_s: inf cannot be sent; write a finite number",
    ),
    "a variable of the replicas alone": Mistake(
        LAPTOP,
        "    args:\n",
        "    runtime_env: {env_vars: {HEADLIGHT_MAX_BODY_BYTES: junk}}\n    args:\n",
        "max_body_bytes",
    ),
    "log level": Mistake(
        LAPTOP, "log_level: WARNING", "log_level: WARN1", 'logging_config.log_level: Got "WARN1"'
    ),
    "a port that is none": Mistake(
        LAPTOP, "port: 8000", "port: 80000", "http_options.port: a port is 1 to 65535, not 80000"
    ),
    "the dashboard's port": Mistake(
        LAPTOP,
        "port: 8000",
        "port: 8265",
        "http_options.port: 8265 is for Ray's dashboard; write another, such as 8000",
    ),
    "HAProxy's own port": Mistake(
        LAPTOP, "port: 8000", "port: 9101", "http_options.port: 9101 is for HAProxy's own metrics"
    ),
    "a port of the replicas'": Mistake(
        LAPTOP, "port: 8000", "port: 30100", "http_options.port: 30100 is among 30000 to 31000"
    ),
    "nobody listens": Mistake(
        LAPTOP,
        "proxy_location: EveryNode",
        "proxy_location: Disabled",
        "proxy_location: nothing would listen; write EveryNode",
    ),
    "no host": Mistake(
        GPU,
        "  host: 0.0.0.0\n",
        "",
        "http_options.host: is not set, and Ray would listen on 0.0.0.0; write",
    ),
    "one prefix for two": Mistake(
        TWO,
        "route_prefix: /base",
        "route_prefix: /minilm",
        'applications: Found duplicate applications for route prefix "/minilm"',
    ),
    "one name for two": Mistake(
        TWO, "name: base", "name: minilm", "applications: Found multiple configs for application"
    ),
    # rules of Ray's that its schema leaves out
    "a prefix without its slash": Mistake(
        LAPTOP,
        "    route_prefix: /",
        "    route_prefix: minilm",
        f"{APPLICATION}.route_prefix: 'minilm' must be / or parts that each begin with /, of "
        "letters, digits, `.`, `_`, `~` or `-`; write /minilm",
    ),
    "a prefix that ends with a slash": Mistake(
        TWO, "route_prefix: /base", "route_prefix: /base/", "'/base/' must be / or parts"
    ),
    "a prefix that HAProxy cannot read": Mistake(
        TWO, "route_prefix: /base", "route_prefix: /our base", "write /our/base"
    ),
    "no prefix": Mistake(
        LAPTOP,
        "    route_prefix: /",
        "    route_prefix: null",
        f"{APPLICATION}.route_prefix: no request would reach the application; write a path",
    ),
    "a prefix that clients resolve": Mistake(
        TWO, "route_prefix: /base", "route_prefix: /minilm/..", "holds a part that clients leave"
    ),
    "a prefix of Ray's": Mistake(
        TWO, "route_prefix: /base", "route_prefix: /-/base", "is among Ray's own paths"
    ),
    "a name that Ray cuts apart": Mistake(
        LAPTOP,
        "- name: headlight",
        '- name: "head#light"',
        f"{APPLICATION}.name: 'head#light' cannot be in the names of Ray's replicas",
    ),
    "an environment's key": Mistake(
        LAPTOP,
        "    args:",
        "    runtime_env: {env_var: {}}\n    args:",
        f'{APPLICATION}.runtime_env.env_var: Ray knows no such key; did you mean "env_vars"?',
    ),
    "TLS that HAProxy does not speak": Mistake(
        LAPTOP,
        "  port: 8000",
        "  port: 8000\n  ssl_keyfile: /key\n  ssl_certfile: /cert",
        "http_options.ssl_",
    ),
    "a part of the replicas": Mistake(
        LAPTOP,
        "applications:",
        "target_capacity: 0\napplications:",
        "target_capacity: leave it out; the number of replicas is num_replicas",
    ),
    "somebody else's scaling": Mistake(
        LAPTOP,
        "    args:",
        "    external_scaler_enabled: true\n    args:",
        f"{APPLICATION}.external_scaler_enabled: leave it out; write max_replicas in args",
    ),
    "another choice of replicas": Mistake(
        LAPTOP,
        REPLICAS,
        f"{REPLICAS}        request_router_config: {{max_backoff_s: 1}}\n",
        f"{DEPLOYMENT}.request_router_config: leave it out; it comes from HAProxy",
    ),
    # whose application it is
    "import path": Mistake(
        LAPTOP,
        "import_path: service.app:build",
        "import_path: service.app:biuld",
        f"{APPLICATION}.import_path: 'service.app:biuld' is not there; write service.app:build",
    ),
    "somebody else's application": Mistake(
        LAPTOP,
        "import_path: service.app:build",
        "import_path: other.place:thing",
        "applications: no application is Headlight's; import_path is service.app:build",
    ),
    "deployment's name": Mistake(
        LAPTOP,
        "- name: Encoder",
        "- name: Encodr",
        f"{DEPLOYMENT}.name: the one deployment of service.app:build is Encoder",
    ),
    # settings
    "a setting's name": Mistake(
        LAPTOP,
        "threads: 1",
        "thread: 1",
        f'{APPLICATION}.args.thread: no such setting; did you mean "threads"?',
    ),
    "a setting's bounds": Mistake(
        LAPTOP,
        "drain_seconds: 25",
        "drain_seconds: 2500",
        f"{APPLICATION}.args.drain_seconds: Input should be less than or equal to 600, not 2500",
    ),
    "two settings": Mistake(
        LAPTOP,
        "threads: 1",
        "max_body_bytes: 1073741824",
        f"{APPLICATION}.args: max_body_bytes 1073741824 must not be more than half of max_held",
    ),
    "a setting that stands elsewhere": Mistake(
        LAPTOP,
        "threads: 1",
        "port: 9000",
        f"{APPLICATION}.args.port: not here but in http_options.port",
    ),
    # what only goes together
    "request_timeout_s": Mistake(
        LAPTOP,
        "request_timeout_s: 35",
        "request_timeout_s: 30",
        "http_options.request_timeout_s: 30 must be deadline_seconds + 5; write 35",
    ),
    "no request_timeout_s": Mistake(
        LAPTOP,
        "  request_timeout_s: 35",
        "  # nothing",
        "http_options.request_timeout_s: is not set, so that a request may take for ever",
    ),
    "graceful_shutdown_timeout_s": Mistake(
        LAPTOP,
        REPLICAS,
        f"{REPLICAS}        graceful_shutdown_timeout_s: 20\n",
        f"{DEPLOYMENT}.graceful_shutdown_timeout_s: 20 is less than drain_seconds + ",
    ),
    "deadlines of two": Mistake(
        TWO,
        "      max_body_bytes: 65536",
        "      deadline_seconds: 60",
        "applications[1].args.deadline_seconds: one HAProxy carries all, so they must agree; "
        "here are 30 and 60",
    ),
    "max_ongoing_requests": Mistake(
        LAPTOP,
        REPLICAS,
        f"{REPLICAS}        max_ongoing_requests: 5\n",
        f"{DEPLOYMENT}.max_ongoing_requests: leave it out; it comes from max_waiting_requests",
    ),
    "Ray's own scaling": Mistake(
        LAPTOP,
        REPLICAS,
        "        autoscaling_config: {max_replicas: 2}\n",
        f"{DEPLOYMENT}.autoscaling_config: not here but min_replicas and max_replicas in args",
    ),
    "replicas on nodes without the variables": Mistake(
        LAPTOP,
        "          label_selector: {headlight: serves}",
        "          resources: {}",
        f"{ACTOR}.label_selector: keeps replicas off nodes without ray.env; write "
        "{headlight: serves}",
    ),
    "more threads than processors": Mistake(
        LAPTOP,
        "threads: 1",
        "threads: 2",
        f"{ACTOR}.num_cpus: 1 is less than threads; write num_cpus: 2",
    ),
    "a GPU that Ray hides": Mistake(
        GPU,
        "          num_gpus: 1\n",
        "",
        f"{ACTOR}.num_gpus: device is cuda, but Ray hides every GPU; write num_gpus: 1",
    ),
    "a GPU for nothing": Mistake(
        GPU,
        "device: cuda",
        "device: cpu",
        f"{ACTOR}.num_gpus: device is cpu, but a replica takes 1 GPU; leave it out",
    ),
    "two GPUs": Mistake(
        GPU,
        "num_gpus: 1",
        "num_gpus: 2",
        f"{ACTOR}.num_gpus: a replica uses one GPU, not 2; write num_gpus: 1",
    ),
    # the variables of nodes
    "a variable's name": Mistake(
        ENV,
        "RAY_SERVE_HAPROXY_RETRIES=3",
        "RAY_SERVE_HAPROXY_RETRYS=3",
        "RAY_SERVE_HAPROXY_RETRIES: is not set; must be 3",
    ),
    "throughput without HAProxy": Mistake(
        ENV,
        "RAY_SERVE_ENABLE_HA_PROXY=1",
        "RAY_SERVE_ENABLE_HA_PROXY=0",
        "RAY_SERVE_ENABLE_HA_PROXY: is '0'; must be 1",
    ),
    "HAProxy's room": Mistake(
        ENV,
        "MAXCONN=3328",
        "MAXCONN=512",
        "RAY_SERVE_HAPROXY_MAXCONN: is '512'; must be at least 1024",
    ),
    "HAProxy's program": Mistake(
        ENV,
        '"$(command -v headlight-haproxy)"',
        "/usr/sbin/haproxy",
        "RAY_SERVE_HAPROXY_BINARY_PATH: is '/usr/sbin/haproxy'; must be headlight-haproxy",
    ),
    "no token": Mistake(
        ENV,
        "RAY_AUTH_MODE=token",
        "RAY_AUTH_MODE=disabled",
        "RAY_AUTH_MODE: is 'disabled'; anyone who reaches Ray could run code: must be token",
    ),
    "a node's drain": Mistake(
        ENV,
        "DRAIN_TIMEOUT_S=90",
        "DRAIN_TIMEOUT_S=30",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S: is 30, but a replica may take 35 s to leave",
    ),
    "a setting as a variable": Mistake(
        ENV,
        "RAY_AUTH_MODE=token",
        "RAY_AUTH_MODE=token\nHEADLIGHT_THREAD=1",
        'HEADLIGHT_THREAD: no such setting; did you mean "threads"?',
    ),
    "no variable": Mistake(
        ENV, "RAY_AUTH_MODE=token", "RAY_AUTH_MODE=token\nnonsense", "not a variable; write NAME="
    ),
    # a RayService around a Serve file
    "a key inside": Mistake(
        KUBERAY,
        "            num_replicas: 1\n",
        "            num_replica: 1\n",
        f"spec.serveConfigV2.{DEPLOYMENT}.num_replica: Ray knows no such key; did you mean",
    ),
    "no text inside": Mistake(
        KUBERAY, "  serveConfigV2: |", "  serveConfigV1: |", "spec.serveConfigV2: is missing"
    ),
    "loopback in pods": Mistake(
        KUBERAY,
        "      host: 0.0.0.0",
        "      host: 127.0.0.1",
        "spec.serveConfigV2: host 127.0.0.1: no other pod reaches it; write 0.0.0.0",
    ),
    "more replicas than pods": Mistake(
        KUBERAY,
        "            num_replicas: 1\n            ray_actor_options:\n",
        "            num_replicas: 6\n            ray_actor_options:\n",
        "must be at least 4864",
    ),
    "a pod's variable": Mistake(
        KUBERAY,
        'RAY_SERVE_HAPROXY_MAXCONN, value: "3328"',
        'RAY_SERVE_HAPROXY_MAXCONN, value: "900"',
        f"{POD}.containers[0].env.RAY_SERVE_HAPROXY_MAXCONN: is '900'; must be at least 1024",
    ),
    "a pod's port": Mistake(
        KUBERAY,
        "{name: serve, containerPort: 8000}",
        "{name: serve, containerPort: 8001}",
        f"{POD}.containers[0].ports[2].containerPort: 8001 is not http_options.port; write 8000",
    ),
    "a pod's grace": Mistake(
        KUBERAY,
        "terminationGracePeriodSeconds: 120",
        "terminationGracePeriodSeconds: 60",
        f"{POD}.terminationGracePeriodSeconds: 60 s is not more than RAY_GRACEFUL_SHUTDOWN_DRAIN",
    ),
    "a cluster's end": Mistake(
        KUBERAY,
        "rayClusterDeletionDelaySeconds: 180",
        "rayClusterDeletionDelaySeconds: 100",
        "spec.rayClusterDeletionDelaySeconds: a pod may take 120 s to leave; write 180",
    ),
    "a cluster without a token": Mistake(
        KUBERAY,
        "authOptions: {mode: token}",
        "authOptions: {mode: disabled}",
        "spec.rayClusterConfig.authOptions: anyone who reaches Ray could run code",
    ),
}
# One mistake, and what follows from it
MORE = {"more replicas than pods": 2, "TLS that HAProxy does not speak": 2}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_at_its_place(name: str, tmp_path: Path) -> None:
    """FILE:LINE: key: what is wrong; at the line that was changed, where one was."""
    mistake = MISTAKES[name]
    right = content(mistake.file)
    assert right.count(mistake.old), "the change changes nothing"
    wrong = right.replace(mistake.old, mistake.new, 1)
    file = tmp_path / Path(mistake.file).name
    file.write_text(wrong)

    found, _ = check.check([file])

    lines = [str(each) for each in found if each.wrong]
    assert len(lines) == MORE.get(name, 1), lines
    assert any(mistake.said in line for line in lines), lines
    assert all(line.startswith(f"{file}:") and "\n" not in line for line in lines)


def test_the_line_is_the_one_in_the_file(tmp_path: Path) -> None:
    """In a Serve file and in one within a RayService alike."""
    for name in (LAPTOP, KUBERAY):
        text = content(name).replace("num_replicas: 1", "num_replica: 1")
        file = tmp_path / Path(name).name
        file.write_text(text)

        found, _ = check.check([file])

        (finding,) = (each for each in found if each.wrong)
        assert "num_replica: 1" in text.splitlines()[finding.line - 1]


def test_a_serve_file_is_held_against_the_variables_beside_it(tmp_path: Path) -> None:
    """HAProxy's room, by its formula, for the replicas of all models."""
    file = tmp_path / "laptop.yaml"
    text = (ROOT / "deploy" / LAPTOP).read_text()
    file.write_text(text.replace("num_replicas: 1", "num_replicas: 5"))

    found, _ = check.check([file, ROOT / "deploy" / ENV])

    (line,) = (str(each) for each in found if each.wrong)
    assert line.startswith(f"{ROOT / 'deploy' / ENV}:") and "must be at least 4096" in line


@pytest.mark.parametrize("given", [KEY, f"[{{name: a, digest: {KEY}}}]", "[]"])
def test_a_key_in_a_serve_file_is_refused_and_not_shown(given: str, tmp_path: Path) -> None:
    """Whatever its form; taken at its word, one that fits would be dropped without a word."""
    file, text = tmp_path / "laptop.yaml", (ROOT / "deploy" / LAPTOP).read_text()
    file.write_text(text.replace("    args:\n", f"    args:\n      api_keys: {given}\n"))

    result = run(str(file))

    assert result.exit_code == 2 and KEY not in result.output
    said = "args.api_keys: not here but in a file on the nodes that api_keys_file names"
    assert [said in line for line in result.stdout.splitlines() if "note:" not in line] == [True]


def test_a_key_among_limits_is_refused_and_not_shown(tmp_path: Path) -> None:
    """Nothing belongs there."""
    file, text = tmp_path / "laptop.yaml", (ROOT / "deploy" / LAPTOP).read_text()
    file.write_text(text.replace(REPLICAS, f"{REPLICAS}        user_config: {{api_keys: {KEY}}}\n"))

    result = run(str(file))

    assert result.exit_code == 2 and KEY not in result.output
    assert "user_config: leave it out" in result.stdout


def test_a_file_of_keys_is_each_nodes_own(tmp_path: Path) -> None:
    """It need not be here; where it is there must be said for every working directory."""
    for path, status in (("/etc/headlight/keys", 0), ("etc/keys", 2)):
        file, text = tmp_path / "laptop.yaml", (ROOT / "deploy" / LAPTOP).read_text()
        args = f"    args:\n      api_keys_file: {path}\n"
        file.write_text(text.replace("    args:\n", args))
        result = run(str(file))
        assert result.exit_code == status, result.output
        assert ("write an absolute path" in result.stdout) == bool(status)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """In the order of their lines."""
    file = tmp_path / "laptop.yaml"
    text = (ROOT / "deploy" / LAPTOP).read_text()
    text = text.replace("port: 8000", "prot: 8000").replace("num_replicas", "num_replica")
    file.write_text(text.replace("num_cpus", "num_cpu"))

    found, _ = check.check([file])

    assert [each.path.rpartition(".")[2] for each in found] == ["prot", "num_replica", "num_cpu"]


def run(*arguments: str) -> Result:
    """Run `headlight config check`."""
    return CliRunner().invoke(main, ["config", "check", *arguments])


def test_the_command_exits_with_2_for_a_mistake_and_0_without(tmp_path: Path) -> None:
    """What was right is said as well; a note changes nothing."""
    right, wrong = ROOT / "deploy" / LAPTOP, tmp_path / "laptop.yaml"
    wrong.write_text(right.read_text().replace("num_replicas", "num_replica"))

    good, bad = run(str(right)), run(str(wrong), str(right))

    assert (good.exit_code, bad.exit_code) == (0, 2)
    assert f"{right}: ok: " in good.stdout and f"{right}: ok: " in bad.stdout
    assert "host: note: only its own node reaches" in good.stdout
    assert f"{wrong}: ok" not in bad.stdout


def test_json_has_each_mistake_and_what_is_right(tmp_path: Path) -> None:
    """One object, with the parts of a line each by its name; the same exit status."""
    right, wrong = ROOT / "deploy" / LAPTOP, tmp_path / "laptop.yaml"
    wrong.write_text(right.read_text().replace("num_replicas", "num_replica"))

    result = run(str(wrong), str(right), "--json")

    said = json.loads(result.stdout)
    (mistake,) = (each for each in said["findings"] if not each["note"])
    assert result.exit_code == 2
    assert mistake["file"] == str(wrong) and mistake["line"] == 26
    assert mistake["path"] == f"{DEPLOYMENT}.num_replica"
    assert mistake["text"].startswith("Ray knows no such key")
    assert said["right"][0].startswith(f"{right}: ok: ")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """A rule of Prometheus' is neither."""
    file = tmp_path / "prometheusrule.yaml"
    file.write_text(manifests()["prometheusrule.yaml"])

    result = run(str(file))

    assert result.exit_code == 2 and "nothing to check here" in result.stdout


@pytest.mark.parametrize("prefix", ["minilm", "", "/a/", "/{a}", "/a/{b}", "//", "/a//b", "a/"])
def test_no_prefix_passes_that_ray_refuses(prefix: str) -> None:
    """By the validator that Ray has in what it says of a running application."""
    with pytest.raises(ValidationError) as caught:
        ApplicationDetails.model_validate({"route_prefix": prefix})
    theirs = [each for each in caught.value.errors() if each["loc"] == ("route_prefix",)]
    value = {"applications": [{"route_prefix": prefix}]}

    ours = [found.place for found in schema.names(value)]

    assert ours == [("applications", 0, "route_prefix")]
    assert theirs or prefix in ("//", "/a//b")  # HAProxy's and ours are stricter
