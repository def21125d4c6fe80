"""How far a job has come: a small file in the user's cache, by what the job is.

The same job goes on from it; another job has another file. It is replaced whole, so whatever ends
the job leaves one that holds.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from service.heads import cache

DIGITS = 16  # of the digest in a file's name


class Bookmark:
    """The file of one job.

    Args:
        job: all that its answer depends on.

    Raises:
        OSError: the user has no cache.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = dict(job)
        digest = hashlib.sha256(orjson.dumps(job, option=orjson.OPT_SORT_KEYS)).hexdigest()
        self.path = cache.folder() / f"ranking-{digest[:DIGITS]}.json"

    def read(self) -> dict[str, Any] | None:
        """What was written last, None where nothing was."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            entry = orjson.loads(self.path.read_bytes())
            if entry["job"] == self._job:
                state: dict[str, Any] = entry["state"]
                return state
        return None

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace what was written before.

        Raises:
            OSError: the cache cannot be written.
        """
        cache.write(self.path, orjson.dumps({"job": self._job, "state": state}))

    def remove(self) -> None:
        """Forget the job."""
        self.path.unlink(missing_ok=True)
