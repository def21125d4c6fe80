"""Three nodes with two replicas, for every test that leaves them so."""

from collections.abc import Iterator

import pytest

from tests.cluster import machines, nodes

# A replica that finds no place says so after this long
IMPATIENT = "export SERVE_SLOW_STARTUP_WARNING_S=3"


@pytest.fixture(scope="session")
def bare() -> Iterator[nodes.Cluster]:
    """Machines, none of which runs anything yet."""
    if missing := machines.missing():
        pytest.skip(missing)
    with nodes.cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three(bare: nodes.Cluster) -> nodes.Cluster:
    """A head and two workers."""
    for number in (nodes.HEAD, *nodes.WORKERS):
        bare.start(number, variables=f"{nodes.VARIABLES}; {IMPATIENT}")
    bare.joined()
    return bare


@pytest.fixture(scope="module")
def lasting() -> Iterator[nodes.Cluster]:
    """Three nodes that are started again whenever they end; the head's state in Redis, if any."""
    if missing := machines.missing():
        pytest.skip(missing)
    with nodes.cluster() as cluster:
        if nodes.redis():
            redis = cluster.add(nodes.REDIS)
            redis.run(
                f"{cluster.shell('true')}; redis-server --bind {redis.address} --save ''"
                " --protected-mode no --daemonize yes > /tmp/redis.log"
            )
            cluster.variables += f"; export RAY_REDIS_ADDRESS={redis.address}:6379"
        for number in (nodes.HEAD, *nodes.WORKERS):
            cluster.start(number, again=True)
        cluster.joined()
        cluster.serve_deploy("laptop.yaml")
        cluster.deploy("laptop.yaml", nodes.replicated(2))
        cluster.wait(nodes.serving(2))
        cluster.ready()
        yield cluster
