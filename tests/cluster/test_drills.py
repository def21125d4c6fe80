"""What a cluster of three nodes does to its clients while a part of it is lost."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from service.files import weights
from tests.cluster import load, nodes
from tests.ray import test_scaling as scaling
from tests.ray.drill import Journal, wait

pytestmark = pytest.mark.prove

BEFORE_SECONDS = 3  # of load alone
KILLS, KILL_SECONDS = 10, 10
CUT_SECONDS = 10
MOST, PLACES = 3, 2  # replicas that may be wanted, and that the workers have room for
VERDICT_SECONDS = 5  # after a cut: by then Ray replaces the replica that it did not reach, or won't

Report = dict[str, load.Heard]


def drill(cluster: nodes.Cluster, title: str, do: Callable[[], object]) -> Report:
    """Load every node while something is done after a while; print what each of them gave."""
    addresses = [cluster.head.address, *(each.address for each in cluster.workers)]

    def later() -> None:
        time.sleep(BEFORE_SECONDS)
        do()

    heard = load.during(later, addresses, nodes.PORT)
    for name, address in zip(("head", "worker 1", "worker 2"), addresses, strict=False):
        print(f"\n{title}: {name}: {heard[address]}", end="")
    print()
    return heard


@pytest.fixture(autouse=True)
def all_ready(lasting: nodes.Cluster) -> None:
    """Each begins when what the one before has left behind is over."""
    lasting.wait(nodes.serving(2))
    lasting.ready()


def whole(heard: Report, *addresses: str) -> None:
    """Hold that these addresses lost nothing, and gave the same bits."""
    for address in addresses or heard:
        assert heard[address].whole(), f"{address}: {heard[address]}"
    assert len(set().union(*(each.journal.data for each in heard.values()))) == 1


def test_a_worker_told_to_stop_drains(lasting: nodes.Cluster) -> None:
    """SIGTERM, as a pod gets it: it ends within its grace, and costs its own clients alone."""
    worker = lasting.workers[1]
    (starter,) = worker.starters()

    def stop() -> None:
        began = time.monotonic()
        worker_shell = Path(f"/proc/{starter}")
        os.kill(starter, signal.SIGTERM)
        wait(lambda: not worker_shell.exists(), "the node's end", 120)
        print(f"\nthe node ended after {time.monotonic() - began:.1f} s", end="")
        lasting.wait(nodes.serving(2), 120)  # its supervisor has started it again
        wait(lambda: nodes.answers(f"http://{worker.address}:{nodes.PORT}"), "ready")

    heard = drill(lasting, "SIGTERM to worker 2", stop)
    whole(heard, lasting.head.address, lasting.workers[0].address)
    assert not heard[worker.address].journal.lost  # it is left; or refuses, till it serves again
    assert set(heard[worker.address].journal.codes) <= {200, 503}


@pytest.mark.skipif(not nodes.redis(), reason="redis-server is not installed (Debian has it)")
def test_a_killed_gcs_costs_the_workers_clients_nothing(lasting: nodes.Cluster) -> None:
    """With Redis: the head starts again and finds its nodes, which served meanwhile."""
    nodes_before = lasting.alive()

    def kill() -> None:
        began = time.monotonic()
        lasting.head.kill("gcs_server")
        wait(lambda: not lasting.alive(), "the head gone")
        lasting.wait(nodes.serving(2), 120)
        wait(lambda: nodes.answers(f"http://{lasting.head.address}:{nodes.PORT}"), "ready")
        print(f"\nthe head serves again after {time.monotonic() - began:.1f} s", end="")

    before = [worker.named("ServeReplica") for worker in lasting.workers]
    heard = drill(lasting, "gcs_server killed, with Redis", kill)
    whole(heard, *(worker.address for worker in lasting.workers))
    assert lasting.alive() == nodes_before
    assert [worker.named("ServeReplica") for worker in lasting.workers] == before


def test_a_killed_haproxy_costs_the_clients_of_its_node_alone(lasting: nodes.Cluster) -> None:
    """Those in flight there, and then refused connections until Ray has started another."""
    worker = lasting.workers[0]

    def kill() -> None:
        began = time.monotonic()
        for pid in worker.named("haproxy"):
            os.kill(pid, signal.SIGKILL)
        wait(lambda: nodes.answers(f"http://{worker.address}:{nodes.PORT}"), "ready")
        print(f"\nHAProxy answers again after {time.monotonic() - began:.1f} s", end="")

    heard = drill(lasting, "HAProxy of worker 1 killed", kill)
    whole(heard, lasting.head.address, lasting.workers[1].address)
    assert len(heard[worker.address].journal.lost) <= load.CONNECTIONS


def test_a_cut_link_costs_what_was_on_it(lasting: nodes.Cluster) -> None:
    """The other nodes answer all that reaches them; what waited for the cut replica goes on."""
    worker = lasting.workers[1]

    def cut() -> None:
        worker.run("ip link set eth0 down")
        time.sleep(CUT_SECONDS)
        worker.run("ip link set eth0 up")
        time.sleep(VERDICT_SECONDS)
        lasting.wait(nodes.serving(2))
        wait(lambda: nodes.answers(f"http://{worker.address}:{nodes.PORT}"), "ready")

    heard = drill(lasting, "the link of worker 2 cut for 10 s", cut)
    whole(heard, lasting.head.address, lasting.workers[0].address)


def test_a_killed_controller_costs_nothing(lasting: nodes.Cluster) -> None:
    """Ray starts another, which finds what runs."""

    def kill() -> None:
        killed = lasting.head.kill("ServeController")
        wait(lambda: lasting.head.named("ServeController") not in ([], [killed]), "another")
        lasting.wait(nodes.serving(2))

    whole(drill(lasting, "the controller killed", kill))


def test_replicas_killed_over_and_over_cost_nothing(lasting: nodes.Cluster) -> None:
    """Each ten seconds after both serve again, in turns on both workers.

    With the last one that serves, what it was computing is lost; what comes later waits.
    """

    def kill() -> None:
        for number in range(KILLS):
            worker = lasting.workers[number % 2]
            killed = worker.kill("ServeReplica")
            wait(lambda w=worker, pid=killed: w.named("ServeReplica") not in ([], [pid]), "another")
            lasting.wait(nodes.serving(2), 120)
            time.sleep(KILL_SECONDS)

    whole(drill(lasting, f"{KILLS} replicas killed", kill))


def test_replicas_follow_the_load_while_one_cannot_be_placed(lasting: nodes.Cluster) -> None:
    """From one to the bound, which no worker has room for, and back to one: no request fails."""
    lasting.deploy("laptop.yaml", nodes.replicated(1))
    lasting.wait(nodes.serving(1))
    lasting.deploy("laptop.yaml", scaled)
    lasting.wait(nodes.serving(1), 120)
    crowd, passer, began = Journal(), Journal(), time.monotonic()
    at, host = nodes.PORT, lasting.head.address

    with scaling.under(
        scaling.Load(at, 1, scaling.SHORT, scaling.PAUSE_SECONDS, host=host), passer
    ):
        with scaling.under(scaling.Load(at, MOST * scaling.CROWD, scaling.LONG, host=host), crowd):
            lasting.wait(short)
            wait(lambda: len(crowd.replicas) == PLACES, "both serve")
            up = time.monotonic() - began
        began = time.monotonic()
        lasting.wait(nodes.serving(1), 120)
        down = time.monotonic() - began

    print(f"\none without a place: up {up:.1f} s, down {down:.1f} s; {crowd.codes}, {passer.codes}")
    for journal in (crowd, passer):
        assert journal.lost == [] and set(journal.codes) == {200} and len(journal.data) == 1
    assert len(crowd.replicas) == PLACES
    lasting.deploy("laptop.yaml", nodes.replicated(1))
    lasting.wait(nodes.serving(1), 120)
    lasting.deploy("laptop.yaml", nodes.replicated(2))


def short(found: nodes.Applications) -> bool:
    """Whether every place is taken, and one more replica waits for one."""
    states = [(state, bool(address)) for state, address in nodes.replicas(found)]
    return (
        len(states) == MOST
        and states.count(("RUNNING", True)) == PLACES
        and not all(placed for _, placed in states)
    )


def scaled(configuration: dict[str, Any]) -> None:
    """A configuration that follows the load up to more replicas than there are places."""
    (application,) = configuration["applications"]
    application["args"] |= {"max_replicas": MOST, "downscale_delay_seconds": 3}
    del application["deployments"][0]["num_replicas"]


@pytest.fixture
def models() -> Iterator[dict[str, Path]]:
    """The bundled model with other weights, and with a NaN, where every node finds them."""
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))  # /tmp is each node's own
    bundled, name = (
        weights.locate_model(weights.BUNDLED_MODEL).folder,
        "encoder.layer.3.output.dense.weight",
    )
    folders = {kind: shutil.copytree(bundled, root / kind) for kind in ("other", "nan")}
    tensors = load_file(bundled / "model.safetensors")
    tensors[name] = tensors[name] * 0.9
    save_file(tensors, folders["other"] / "model.safetensors")
    tensors[name][5, 7] = float("nan")
    save_file(tensors, folders["nan"] / "model.safetensors")
    yield folders
    shutil.rmtree(root)


def test_other_weights_come_beside_the_old_and_wrong_ones_change_nothing(
    lasting: nodes.Cluster, models: dict[str, Path]
) -> None:
    """One replica, with room for its successor on the other worker; then weights that are NaN."""
    lasting.deploy("laptop.yaml", nodes.replicated(1))
    lasting.wait(nodes.serving(1))
    old, said = served(lasting), ""

    def update() -> None:
        lasting.deploy("laptop.yaml", model(models["other"]))
        wait(lambda: served(lasting) != old, "the new weights", 120)
        lasting.wait(nodes.serving(1), 120)

    heard = drill(lasting, "other weights", update)
    named = set().union(*(each.journal.named for each in heard.values()))
    assert len(named) == 2 and {name for name, _ in named} == {old, served(lasting)}
    # where the old one was the last, HAProxy leaves with it
    assert not [each for each in heard.values() if each.journal.lost]
    head = heard[lasting.head.address]
    assert head.sent == head.journal.codes[200]

    def wrong() -> None:
        nonlocal said
        began = time.monotonic()
        lasting.deploy("laptop.yaml", model(models["nan"]))
        failed = "DEPLOY_FAILED"
        found = lasting.wait(lambda now: failed in [one["status"] for one in now.values()])
        said = next(iter(found.values()))["message"]
        print(f"\nrefused after {time.monotonic() - began:.1f} s", end="")

    heard = drill(lasting, "weights that are NaN", wrong)
    whole(heard, *(address for address, each in heard.items() if each.sent))
    assert heard[lasting.head.address].sent
    assert "holds NaN or infinity" in said and "node 10." in said
    assert served(lasting) != old


def served(cluster: nodes.Cluster) -> str:
    """The digest of the weights that answer at the head."""
    found = httpx.get(f"http://{cluster.head.address}:{nodes.PORT}/info").json()["weights"]
    return str(found)


def model(folder: Path) -> Callable[[dict[str, Any]], None]:
    """A configuration of one replica that serves a folder."""

    def change(configuration: dict[str, Any]) -> None:
        application = configuration["applications"][0]
        application["args"]["model"] = str(folder)
        application["deployments"][0]["num_replicas"] = 1

    return change
