"""Which API keys let in, as their file changes."""

import hashlib
import json
import logging
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.observe import logs
from service.tables import keyring, keys
from service.tables.keyring import MOST_FILE_BYTES, STALE_SECONDS, KeyRing, UnusableKeys
from service.tables.sources import load_settings

KEY, OTHER = "canary-Key_123456789", "another-key-123456"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def test_keys_come_from_a_file_and_a_variable(tmp_path: Path) -> None:
    """With names or without, or as their SHA-256 already; in both, as the variable has it."""
    file = tmp_path / "keys"
    file.write_text(f"{OTHER}\n\nteam-b:{KEY}\nteam-c:sha256:{'0' * 64}\n")

    settled = load_settings({"api_keys_file": str(file)}, {"HEADLIGHT_API_KEYS": KEY})
    ring = KeyRing(settled.api_keys, settled.api_keys_file)

    other = hashlib.sha256(OTHER.encode()).hexdigest()
    held = [(key.name, key.digest) for key in ring.keys]
    assert held == [("key-1", DIGEST), ("key-2", other), ("team-c", "0" * 64)]


def test_what_travels_is_where_the_file_is_whatever_a_replicas_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that is in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours").write_text(KEY)

    settled = load_settings({"api_keys_file": "ours"}, {})

    assert settled.api_keys_file == tmp_path / "ours"
    assert KEY.encode() not in pickle.dumps(settled)


@pytest.mark.parametrize("text", ["", " \n,", "short", f"a:b:{KEY}", f"{KEY} {KEY}", "\u00e9" * 20])
def test_what_is_no_key_is_refused_without_being_shown(text: str, tmp_path: Path) -> None:
    """An empty file would open the service to all."""
    file = tmp_path / "keys"
    file.write_text(text)

    for read in (
        lambda: KeyRing((), file),
        lambda: load_settings({}, {"HEADLIGHT_API_KEYS": text}),
    ):
        with pytest.raises(ValueError, match="^(api_keys|HEADLIGHT_API_KEYS)") as refused:
            read()
        assert not text.strip(" \n,") or text not in str(refused.value)


A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
OF_A, OF_B = f"a:{A}\n", f"b:{B} requests=2\n"
WRONG = {
    "empty": ("", "there is no key"),
    "a comma": (" \n,", "there is no key"),
    "malformed": (f"{OF_A}b:short\n", "line 2 has no key of 16 to 256 letters"),
    "other limits": (f"{OF_A}b:{B}\na:{B}x tokens=3", "line 3 gives its name other limits"),
    "repeated": (f"{OF_A}b:{A}", "line 2 repeats the key of an earlier line"),
    "cut off": (f"{OF_A}b:{B[:7]}", "line 2 has no key of 16 to 256 letters"),
    "no text": (b"a:\xff\xfe", "it is no text in UTF-8"),
    "far too large": ("#" * (MOST_FILE_BYTES + 1), "it has more than 1,048,576 bytes"),
}


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a file has stood there long enough."""
    monkeypatch.setattr(keyring, "SETTLED_SECONDS", 0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the key of a."""
    path = tmp_path / "keys"
    path.write_text(OF_A)
    return path


@pytest.fixture
def told() -> Iterator[Callable[[], list[dict[str, str]]]]:
    """The lines that a replica's log has had."""
    lines, ours = list[str](), logging.getLogger("service")
    handler, level = logging.Handler(), ours.level
    handler.emit = lambda record: lines.append(logs.JsonFormatter("r").format(record))  # type: ignore[method-assign]
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in lines]
    ours.removeHandler(handler)
    ours.setLevel(level)


def write(file: Path, content: str | bytes) -> None:
    """Put a content in a file's place."""
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def names(held: KeyRing) -> list[str]:
    """Whose keys let in."""
    return [key.name for key in held.keys]


def test_a_change_is_taken_up_whole(file: Path, told: Callable[[], list[dict[str, str]]]) -> None:
    """Keys that came, keys that went, and limits; one line says which names."""
    held = KeyRing((), file)
    file.write_text(OF_B)
    held.reload()

    assert held.keys == keys.parse_keys(OF_B) and not held.stale
    (line,) = told()
    assert (line["event"], line["count"]) == ("keys changed", 1)
    assert line["reason"] == "new: b; gone: a"


def test_a_client_changes_from_one_key_to_another(file: Path) -> None:
    """First both let in, by one name, and then the second alone."""
    held = KeyRing((), file)
    digests = []
    for text in (f"a:{A} tokens=9\na:{B} tokens=9", f"a:{B} tokens=9"):
        file.write_text(text)
        held.reload()
        digests.append([key.digest for key in held.keys])

    assert digests[0][1:] == digests[1] and set(names(held)) == {"a"}


@pytest.mark.parametrize(("content", "fault"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_changes_nothing_and_is_told_once(
    file: Path, content: str | bytes, fault: str, told: Callable[[], list[dict[str, str]]]
) -> None:
    """In one line with its reason, which holds no part of a key; a right one counts again."""
    held = KeyRing((), file)
    write(file, content)
    held.reload()
    held.reload()

    assert names(held) == ["a"] and held.stale
    (line,) = told()
    assert (line["level"], line["event"]) == ("error", "keys stay as they are")
    assert fault in line["reason"] and str(file) in line["reason"]
    assert not {A, B, A[:7], B[:7], keys.parse_keys(OF_A)[0].digest} & set(
        line["reason"].split(":")
    )

    file.write_text(OF_A + OF_B)
    held.reload()
    assert names(held) == ["a", "b"] and not held.stale


@pytest.mark.parametrize(("content", "fault"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_refused_at_the_start(file: Path, content: str | bytes, fault: str) -> None:
    """In one line with its reason."""
    write(file, content)

    with pytest.raises(UnusableKeys, match=rf"^api_keys_file {file}: [^\n]+$") as refused:
        KeyRing((), file)
    assert fault in str(refused.value)


def test_a_file_that_is_missing_or_none_is_a_wrong_one(
    file: Path, told: Callable[[], list[dict[str, str]]]
) -> None:
    """Gone while it is followed, it changes nothing; at the start it is refused."""
    held = KeyRing((), file)
    file.unlink()
    held.reload()
    held.reload()
    assert names(held) == ["a"] and held.stale
    assert [line["reason"] for line in told()] == [
        f"api_keys_file {file}: No such file or directory"
    ]

    os.mkfifo(file)
    for wrong, fault in (
        (file, "it is not a regular file, which can be read again"),
        (file.parent, "it is not a regular file, which can be read again"),
        (file / "keys", "Not a directory"),
    ):
        with pytest.raises(UnusableKeys, match=f"{wrong}: {fault}$"):
            KeyRing((), wrong)


def test_a_change_is_seen_whatever_its_time_and_size_say(file: Path) -> None:
    """A backup may be put back with its old time, and keys are often of one length."""
    held, before = KeyRing((), file), file.stat()
    file.write_text(f"a:{B}\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    held.reload()

    assert file.stat().st_size == before.st_size and held.keys == keys.parse_keys(f"a:{B}")


def test_a_secret_that_kubernetes_swaps_is_followed(tmp_path: Path) -> None:
    """keys -> ..data/keys, and ..data -> the folder of one version: one rename changes all."""
    for version, text in (("..1", OF_A), ("..2", OF_B)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    held = KeyRing((), tmp_path / "keys")
    (tmp_path / "..new").symlink_to("..2")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    held.reload()

    assert names(held) == ["b"]


def test_a_file_that_is_being_written_is_left_until_it_stands(
    file: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[dict[str, str]]]
) -> None:
    """An editor empties it, and writes it piece by piece: no key is refused meanwhile."""
    held = KeyRing((), file)
    pieces = iter([OF_B[:5], OF_B + OF_A[:4]])
    file.write_text("")

    def pause(seconds: float) -> None:
        file.write_text(next(pieces, OF_B + OF_A))

    monkeypatch.setattr(keyring.time, "sleep", pause)
    for _ in range(3):
        held.reload()
        assert "a" in names(held) and not held.fault
    held.reload()

    assert names(held) == ["b", "a"] and [line["event"] for line in told()] == ["keys changed"]


def test_keys_are_stale_when_their_file_has_not_been_read_for_long(file: Path) -> None:
    """A disk of the network that hangs, or a file that never stands still."""
    now = 7.0
    held = KeyRing((), file, clock=lambda: now)
    fixed = KeyRing(keys.parse_keys(OF_A), None, clock=lambda: now)
    now += STALE_SECONDS
    assert not held.stale
    now += 1
    assert held.stale and not fixed.stale
    held.reload()
    assert not held.stale


def test_the_settings_own_keys_stay_and_count_before_the_files(file: Path) -> None:
    """A name's limits are one: a file that gives others is wrong."""
    own = keys.parse_keys(f"a:{A} tokens=5")
    with pytest.raises(UnusableKeys, match="line 1 gives its name other limits"):
        file.write_text(f"a:{B}")
        KeyRing(own, file)
    file.write_text(OF_A + OF_B)
    held = KeyRing(own, file)
    assert held.keys == (*own, *keys.parse_keys(OF_B))
    file.write_text(f"c:{B}")
    held.reload()
    assert held.keys == (*own, *keys.parse_keys(f"c:{B}"))


def test_a_thread_keeps_a_ring_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the door and the replica."""
    monkeypatch.setattr(keyring, "POLL_SECONDS", 0.01)
    held = keyring.follow_keys((), file, None)
    file.write_text(OF_B)
    until = time.monotonic() + 10
    while names(held) != ["b"] and time.monotonic() < until:
        time.sleep(0.01)
    held._file = None  # it outlives this test

    assert names(held) == ["b"]


@pytest.mark.parametrize("content", ["", f"a:{A}\nb:sha256:{'A' * 64}"])
def test_a_ring_next_to_a_wrong_file_begins_with_the_last_good_keys(
    file: Path, tmp_path: Path, content: str, told: Callable[[], list[dict[str, str]]]
) -> None:
    """Those of the file alone, as digests, for this user alone; it is stale until that is right."""
    kept, own = tmp_path / "kept", keys.parse_keys("c:the-key-of-c-12345678 models=x,y")
    file.write_text(f"b:{B} requests=2 models=x,z\n{A}")
    first = KeyRing(own, file, kept)
    write(file, content)
    second = KeyRing(own, file, kept)
    assert second.keys == first.keys and second.stale
    assert [line["event"] for line in told()] == ["keys stay as they are"]

    (copy,) = kept.iterdir()
    assert copy.stat().st_mode & 0o777 == 0o600 and kept.stat().st_mode & 0o777 == 0o700
    assert not {A, B, own[0].digest} & set(copy.read_text().replace(" ", ":").split(":"))
    file.write_text(OF_A)
    second.reload()
    assert names(second) == ["c", "a"] and not second.stale
    write(file, content)
    assert names(KeyRing(own, file, kept)) == ["c", "a"]


def test_keys_that_others_may_have_put_there_are_not_taken(file: Path, tmp_path: Path) -> None:
    """A folder that others can write to, a copy that is none, another file's copy."""
    kept = tmp_path / "kept"
    KeyRing((), file, kept)
    write(file, "")
    (copy,) = kept.iterdir()

    for change in (
        lambda: copy.write_text("short"),
        lambda: kept.chmod(0o770),
        lambda: shutil.rmtree(kept),
    ):
        change()
        with pytest.raises(UnusableKeys, match="there is no key"):
            KeyRing((), file, kept)
    other = file.with_name("other")
    other.write_text("")
    with pytest.raises(UnusableKeys, match=f"{other}: there is no key"):
        KeyRing((), other, kept)


def test_where_keys_cannot_be_kept_a_ring_says_so_and_serves(
    file: Path, tmp_path: Path, told: Callable[[], list[dict[str, str]]]
) -> None:
    """As on a disk without room."""
    assert names(KeyRing((), file, tmp_path / "gone" / "kept")) == ["a"]
    (line,) = told()
    assert line["event"] == "keys not kept" and "No such file or directory" in line["reason"]
