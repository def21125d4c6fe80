"""API keys as they are set: a text -> the SHA-256 of each, since a key itself is never kept.

    text            one key a line, or separated by commas: [name:]key or [name:]sha256:<64 hex>
    digests(text)   what is kept of them; the name is for whoever reads the file

Source: RFC 6750, section 2.1.
"""

import hashlib
import re

KEY = re.compile(r"[A-Za-z0-9._~+/-]{16,256}=*")  # a b64token; shorter ones can be guessed
DIGEST = r"[0-9a-f]{64}"
KNOWN_AS = "sha256"


def digests(text: str) -> tuple[str, ...]:
    """Return the SHA-256 of each key of a text, hexadecimal.

    Raises:
        ValueError: there is none, or one is no key; says which by its place, never the key.
    """
    entries = [entry.strip() for entry in re.split(r"[\n,]", text) if entry.strip()]
    if not entries:
        raise ValueError("api_keys: there is no key")
    return tuple(_digest(entry, place) for place, entry in enumerate(entries, start=1))


def _digest(entry: str, place: int) -> str:
    name, _, key = entry.rpartition(":")
    if name.rpartition(":")[2] == KNOWN_AS and re.fullmatch(DIGEST, key):
        return key
    if ":" in name or not KEY.fullmatch(key):
        raise ValueError(
            f"api_keys: entry {place} is no key of 16 to 256 letters, digits and ._~+/-"
        )
    return hashlib.sha256(key.encode()).hexdigest()
