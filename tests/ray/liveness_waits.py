"""Asks a replica whether it lives, over and over, on its own port.

`python tests/ray/liveness_waits.py PORT` answers each line of its input with the longest wait since
the last, in seconds. In a process of its own: what the asker of large answers does is no wait of
the replica's.
"""

import http.client
import select
import sys
import time

PAUSE_SECONDS = 0.005


def listen(port: int) -> None:
    """Until the input ends."""
    connection, worst = http.client.HTTPConnection("127.0.0.1", port, timeout=60), 0.0
    while True:
        if select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            if not sys.stdin.readline():
                return
            print(worst, flush=True)
            worst = 0.0
        begun = time.monotonic()
        connection.request("GET", "/live")
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(answer.status)
        worst = max(worst, time.monotonic() - begun)


if __name__ == "__main__":
    listen(int(sys.argv[1]))
