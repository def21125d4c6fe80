"""A service that asks for keys, started as a container starts it."""

import json
import os
import re
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from service.observe.logs import COMMAND
from service.tables.keyring import STALE_SECONDS
from tests.ray.conftest import MOST_BYTES
from tests.ray.drill import total, wait
from tests.ray.rotation import KEY, OTHER, Keys, answered, asked, turn, turned, verdict
from tests.ray.tenants import ask, flooded
from tests.ray.test_deploy import DEPLOY, VARIABLES, cluster, run, scaled

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

ASKED = {"inputs": ["All is well"]}


def test_a_key_lets_in_and_no_process_shows_it(keyed: "Service") -> None:
    """Not in a command line, an environment or a log; flags reach the door too."""
    bearer = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=keyed.url) as client:
        ready = client.get("/ready")
        refused = client.post("/v1/encode", json=ASKED)
        admitted = client.post("/v1/encode", json=ASKED, headers=bearer)
        large = client.post("/v1/encode", content=b" " * (MOST_BYTES + 1), headers=bearer)
        unknown = client.post("/v1/encode", content=b" " * (MOST_BYTES + 1))
    shown = [
        (pid, what)
        for pid in keyed.family()
        for what in ("cmdline", "environ")
        if KEY.encode() in Path(f"/proc/{pid}/{what}").read_bytes()
    ]
    logs = [path for path in keyed.directory().rglob("*") if path.is_file()]
    wait(lambda: '"event": "request", "replica"' in keyed.errors.read_text(), "it is logged")
    logged = [path for path in (*logs, keyed.errors) if KEY.encode() in path.read_bytes()]

    assert [ready.status_code, refused.status_code, admitted.status_code] == [200, 401, 200]
    assert [large.status_code, unknown.status_code] == [413, 401]
    assert shown == [] and logged == [] and logs


def test_what_a_container_writes_to_stderr_is_its_log_alone(keyed: "Service") -> None:
    """From the first line on, before a replica has a log: with time and level."""
    lines = [json.loads(line) for line in keyed.errors.read_text().splitlines()]

    own = [line["event"] for line in lines if line["replica"] == COMMAND]
    assert all(line["ts"] and line["level"] for line in lines)
    assert {"starting Ray", "loading all-MiniLM-L6-v2"} < {*own}


@pytest.mark.prove
def test_a_key_that_floods_has_no_other_refused(keyed: "Service") -> None:
    """Its own requests are, and each key's are counted as its own."""
    with flooded(
        keyed, OTHER, 100, size="middle"
    ):  # more than waits, however slow the flood's core
        _, codes = ask(keyed, KEY, 2)

    assert codes.keys() == {200}
    assert total(keyed, "headlight_shed_total", key="other") > 0
    assert total(keyed, "headlight_shed_total", key="me") == 0


def test_keys_change_while_it_serves(keyed: "Service", keys: Keys) -> None:
    """A client changes from one key to another, and a wrong file changes nothing but a gauge."""
    new, before = "the-new-key-of-me-123", dict(keys.lines)
    texts = {KEY: "All is well", OTHER: "All is not", new: "All is new"}
    answers = {text: answered(keyed, OTHER, text) for text in texts.values()}
    with asked(keyed, texts, answers) as seen:
        turn(keys, seen, before | {KEY: "me:{} tokens=90000", new: "me:{} tokens=90000"}, new, 200)
        turn(keys, seen, {OTHER: "other:{}", new: "me:{} requests=9"}, KEY, 401)
        keys.write(keys.lines, also="me:short\n")
        wait(lambda: total(keyed, "headlight_keys_stale") == 1, "a gauge of a wrong file")
        turn(keys, seen, before, new, 401)

    reason = f"api_keys_file {keys.file}: line 3 has no key of 16 to 256 letters"
    logged = [
        line
        for path in keyed.directory().rglob("worker-*.out")
        for line in path.read_text().splitlines()
        if reason in line
    ]
    assert verdict(keys, seen) == {} and len(logged) == 1
    assert {each.status for each in seen if each.key == OTHER} == {200}
    assert total(keyed, "headlight_keys_stale") == 0


@pytest.mark.prove
def test_a_replica_next_to_a_wrong_file_begins_with_the_last_good_keys(
    keyed: "Service", keys: Keys
) -> None:
    """It says that they may not be the file's, until the file is right again."""
    (gone,) = replicas(keyed)
    assert total(keyed, "headlight_replaces_failed") == 0
    keys.write(keys.lines, also=f"me:sha256:{'A' * 64}\n")
    os.kill(gone, signal.SIGKILL)
    wait(
        lambda: bool(set(replicas(keyed)) - {gone}), "another replica"
    )  # what the last had may be lost
    wait(lambda: len(ready(keyed, KEY)) == 1, "it is ready")

    url, bearers = f"{keyed.url}/v1/encode", (KEY, OTHER, "a-key-of-nobody-1234")
    codes = [
        httpx.post(url, json=ASKED, headers={"authorization": f"Bearer {key}"}).status_code
        for key in bearers
    ]
    assert codes == [200, 200, 401]
    assert total(keyed, "headlight_keys_stale") == 1
    assert total(keyed, "headlight_replaces_failed") == 1
    (new,) = replicas(keyed)
    (log,) = keyed.directory().rglob(f"worker-*-{new}.out")
    assert f"api_keys_file {keys.file}: line 3 begins like a digest" in log.read_text()
    keys.write(keys.lines)
    wait(lambda: total(keyed, "headlight_keys_stale") == 0, "the right file")


ROUNDS = 3


@pytest.mark.prove
def test_two_replicas_change_keys_under_load_and_kills(start: "Start", tmp_path: Path) -> None:
    """With other limits each time: none that is gone lets in, none that is not is refused."""
    ages, steady = [f"the-key-of-a-number-{age}" for age in range(ROUNDS + 1)], OTHER
    keys = Keys(tmp_path)
    keys.write({ages[0]: "a:{} requests=8 tokens=100000", steady: "b:{} metrics"})
    texts = {key: f"All is well, says {key}" for key in (*ages, steady)}
    took = {"let in": list[float](), "refused": list[float]()}
    with start("--replicas", "2", "--api-keys-file", str(keys.file)) as service:
        answers = {text: answered(service, steady, text) for text in texts.values()}
        controller = next(service.directory().rglob("controller_*.log"))

        def failures() -> int:
            return controller.read_text().count("the replica will be stopped")

        def kill() -> None:
            before = set(replicas(service))
            os.kill(before.pop(), signal.SIGKILL)
            wait(lambda: len(set(replicas(service)) - before) == 1, "another replica", 90)
            wait(lambda: len(ready(service, steady)) == 2, "both are ready", 90)

        with asked(service, texts, answers) as seen:
            for age, (old, new) in enumerate(pairwise(ages)):
                limits = f" requests={9 + age} tokens={200_000 + age}"
                both = {
                    old: "a:{}" + limits,
                    new: "a:{}" + limits,
                    steady: "b:{} metrics tokens=90000",
                }
                took["let in"].append(turn(keys, seen, both, new, 200))
                kill()
                alone = {new: "a:{}", steady: "b:{} metrics"}
                took["refused"].append(turn(keys, seen, alone, old, 401))
                kill()
                time.sleep(STALE_SECONDS)
            keys.write(keys.lines, also="a:short\n")
            time.sleep(STALE_SECONDS)
            stale = re.findall(r"^headlight_keys_stale\{.+\} (\S+)$", page(service, steady), re.M)
            kill()  # the new one begins with the last good keys
            keys.write(keys.lines)
            wait(turned(seen, ages[-1], 200), "the last key lets in")
            failed = failures()
        statuses = Counter((each.status, each.key == steady) for each in seen)

    found = {name: [f"{each:.1f} s" for each in times] for name, times in took.items()}
    print(f"\n{len(seen)} requests, {dict(statuses)} (status, of the key that stays)")
    print(f"taken up after {found}; wrong {dict(verdict(keys, seen))}, failed starts {failed}")
    assert verdict(keys, seen) == {} and failed == 0
    assert stale == ["1.0", "1.0"]


@pytest.mark.prove
def test_a_wrong_file_stops_a_new_version_but_no_replica_of_the_old(tmp_path: Path) -> None:
    """A replica whose node has had a right file begins with its keys."""
    keys = Keys(tmp_path)
    keys.write({KEY: "me:{}"})
    with cluster(VARIABLES) as here:

        def keyed(file: dict[str, Any]) -> None:
            scaled(2)(file)
            file["applications"][0]["args"]["api_keys_file"] = str(keys.file)

        def pids(found: dict[str, Any]) -> set[int]:
            return {one["pid"] for one in found["headlight"]["deployments"]["Encoder"]["replicas"]}

        def codes() -> set[int]:
            bearer = {"authorization": f"Bearer {KEY}"}
            url = f"{here.url}/v1/encode"
            return {httpx.post(url, json=ASKED, headers=bearer).status_code for _ in range(40)}

        here.deploy(DEPLOY, keyed)
        here.wait(lambda found: run(found, 2))
        reason = f"api_keys_file {keys.file}: line 2 has no key of 16 to 256 letters, digits and"

        keys.write(keys.lines, also="me:short\n")
        served = here.applications()["headlight"]["deployments"]["Encoder"]["replicas"]
        os.kill(served[0]["pid"], signal.SIGKILL)
        here.wait(lambda found: run(found, 2) and served[0]["pid"] not in pids(found))
        assert codes() == {200}
        keys.write(keys.lines)
        here.wait(lambda found: run(found, 2))
        assert codes() == {200}

        keys.write(keys.lines, also="me:short\n")
        here.deploy(DEPLOY, lambda file: (keyed(file), limited(file)))
        status, line = here.status()["headlight"]
        print(line)
        assert status == "DEPLOY_FAILED" and f"node 127.0.0.1: {reason}" in line
        assert KEY not in line
        assert codes() == {200}


def limited(file: dict[str, Any]) -> None:
    """A configuration whose replicas are to be others."""
    file["applications"][0]["args"]["max_sequences"] = 7


def replicas(service: "Service") -> list[int]:
    """The processes of its replicas."""
    return [pid for pid, name in service.family().items() if name == "ServeReplica"]


def page(service: "Service", key: str) -> str:
    """The metrics page."""
    bearer = {"authorization": f"Bearer {key}"}
    return httpx.get(f"{service.url}/metrics", headers=bearer, timeout=60).text


def ready(service: "Service", key: str) -> list[str]:
    """The replicas that say they are ready."""
    return re.findall(r'^headlight_ready\{.*replica="(.+)"\} 1', page(service, key), re.M)
