"""`headlight encode --file`: a file of texts -> a file of vectors, safetensors or NumPy's.

Interrupted, it leaves what it has; the same command goes on from there. One request is in
flight at a time, so no more than that one is ever computed twice.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from headlight_client import Client
from service.commands.bulk import lines
from service.commands.bulk.lines import File, Source
from service.commands.bulk.service import Truncate, Unusable, answers, connected
from service.commands.bulk.vectors import SUFFIXES, Also, CannotResume, Vectors


def encode(url: str, key: str | None, file: File, out: Path, truncate: Truncate) -> int:
    """Encode every line of a file, or every one that an earlier run has not.

    Returns:
        How many vectors `out` holds.

    Raises:
        Unusable, Stopped: in a line, why not.
        OSError: a file cannot be read or written.
    """
    if out.suffix not in SUFFIXES:
        raise Unusable(f"{out}: the name of --out ends in {' or '.join(SUFFIXES)}")
    try:
        with (
            connected(url, key, file) as (client, info),
            file.lasting(out.parent) as lasting,
        ):
            source = lines.check(lasting, info)
            origin = {name: info[name] for name in ("model", "weights", "numerics")}
            longest = info["max_tokens"]
            origin |= {**source.origin, "truncate": truncate, "max_tokens": str(longest)}
            with Vectors(out, source.lines, origin, uncut(longest)) as vectors:
                _fill(vectors, client, source, truncate)
                vectors.finish()
    except CannotResume as error:
        raise Unusable(str(error)) from error
    return source.lines


def uncut(longest: int) -> Also:
    """Rows of texts that all fitted are the same wherever, from there on, longer ones are cut.

    Args:
        longest: tokens of a sequence now, at most.
    """

    def also(before: Mapping[str, str]) -> Mapping[str, str]:
        at = before.get("max_tokens", "")
        fitted = before.get("truncate") == "refuse" and at.isdecimal() and int(at) <= longest
        return {"truncate": "refuse", "max_tokens": at} if fitted else {}

    return also


def _fill(vectors: Vectors, client: Client, source: Source, truncate: Truncate) -> None:
    """Add the rows that are not there yet."""
    parts = answers(client, source, vectors.rows, vectors.origin, truncate=truncate)
    with closing(parts):
        for part in parts:
            if part.pooled is None:
                raise RuntimeError("an answer without pooled vectors: this is a bug")
            vectors.append(part.pooled)
