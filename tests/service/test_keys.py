"""Keys as they are set: from a file, from a variable, never from the settings file."""

import hashlib
from pathlib import Path

import pytest

from service import keys
from service.keys import Limits, Ring
from service.settings import load

KEY, OTHER = "canary-Key_123456789", "another-key-123456"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def test_keys_come_from_a_file_and_a_variable(tmp_path: Path) -> None:
    """With names or without, or as their SHA-256 already; in both, as the variable has it."""
    file = tmp_path / "keys"
    file.write_text(f"{OTHER}\n\nteam-b:{KEY}\nteam-c:sha256:{'0' * 64}\n")

    settled = load({"api_keys_file": str(file)}, {"HEADLIGHT_API_KEYS": KEY})
    ring = Ring(settled.api_keys, settled.api_keys_file)

    other = hashlib.sha256(OTHER.encode()).hexdigest()
    held = [(key.name, key.digest) for key in ring.keys]
    assert held == [("key-1", DIGEST), ("key-2", other), ("team-c", "0" * 64)]


def test_a_key_has_limits_and_one_client_may_have_two_keys() -> None:
    """In any order; two keys of a name, of which a client changes from one to the other."""
    text = f"a:{KEY} rate=20000 requests=64\na:{OTHER} requests=64 rate=20000, {KEY}x tokens=5"

    held = keys.read(text)

    assert keys.tenants(held) == {"a": Limits(64, None, 20000), "key-3": Limits(None, 5, None)}
    assert keys.read(",".join(map(keys.entry, held))) == held
    assert KEY not in repr(held) and DIGEST not in repr(held)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"a:{KEY}\n\nb:short", 3),
        (f"{KEY} requests=0", 1),
        (f"{KEY} requests=-1", 1),
        (f"{KEY} requests=1.5", 1),
        (f"{KEY} requests=1 requests=1", 1),
        (f"{KEY} burst=1", 1),
        (f"{KEY} tokens", 1),
        (f"{KEY} tokens=1 {OTHER}", 1),
        (f"b:{OTHER}\na b:{KEY}", 2),
        (f"-:{KEY}", 1),
        (f"{'n' * 65}:{KEY}", 1),
        (f"{KEY}:{OTHER}:{KEY}", 1),
        (f"a:{KEY}\nb:{KEY}", 2),
        (f"a:{KEY} rate=1\na:{OTHER} rate=2", 2),
        (f"a:{KEY} rate=1\nb:{KEY}x\na:{OTHER}", 3),
    ],
)
def test_an_entry_that_is_wrong_is_named_by_its_line(text: str, line: int) -> None:
    """In one line, which holds no part of a key."""
    with pytest.raises(ValueError, match=rf"^api_keys: line {line} \S[^\n]+$") as refused:
        keys.read(text)
    assert not {KEY, OTHER, "short"} & set(str(refused.value).replace(":", " ").split())


def test_no_key_goes_by_the_name_of_another() -> None:
    """Keys without a name are numbered."""
    with pytest.raises(ValueError, match="key-1"):
        keys.read(f"{KEY}\nkey-1:{OTHER}")


@pytest.mark.parametrize("text", ["", " \n,", "short", f"a:b:{KEY}", f"{KEY} {KEY}", "\u00e9" * 20])
def test_what_is_no_key_is_refused_without_being_shown(text: str, tmp_path: Path) -> None:
    """An empty file would open the service to all."""
    file = tmp_path / "keys"
    file.write_text(text)

    for read in (lambda: Ring((), file), lambda: load({}, {"HEADLIGHT_API_KEYS": text})):
        with pytest.raises(ValueError, match="^api_keys") as refused:
            read()
        assert not text.strip(" \n,") or text not in str(refused.value)


def test_keys_are_not_read_from_the_settings_file(tmp_path: Path) -> None:
    """It is shared and shown; keys have a file of their own."""
    file = tmp_path / "headlight.yaml"
    file.write_text(f"api_keys: {KEY}\n")

    with pytest.raises(ValueError, match="api_keys_file") as refused:
        load({}, {}, file)
    assert KEY not in str(refused.value)
