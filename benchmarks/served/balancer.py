"""How one HAProxy chooses a replica, for the simulation."""

from collections import deque


class Balancer:
    """The servers of one HAProxy: fewest connections first, then longest unused."""

    def __init__(self, servers: list[int]) -> None:
        self._connections = dict.fromkeys(servers, 0)
        self._buckets = [deque(servers)]  # by connections; a server that moved on is stale in it

    def take(self) -> int:
        """Return the next server."""
        for count, bucket in enumerate(self._buckets):
            while bucket:
                server = bucket.popleft()
                if self._connections[server] == count:
                    self._put(server, count + 1)
                    return server
        raise AssertionError("every server is in a bucket")

    def give(self, server: int) -> None:
        """Free one of its connections."""
        self._put(server, self._connections[server] - 1)

    def _put(self, server: int, count: int) -> None:
        self._connections[server] = count
        if count == len(self._buckets):
            self._buckets.append(deque())
        self._buckets[count].append(server)
