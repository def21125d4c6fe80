"""Keys as they are set: from a file, from a variable, never from the settings file."""

import hashlib
from pathlib import Path

import pytest

from service.settings import load

KEY, OTHER = "canary-Key_123456789", "another-key-123456"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


def test_keys_come_from_a_file_and_a_variable(tmp_path: Path) -> None:
    """With names or without, or as their SHA-256 already."""
    file = tmp_path / "keys"
    file.write_text(f"{OTHER}\n\nteam-b:{KEY}\nteam-c:sha256:{'0' * 64}\n")

    settled = load({"api_keys_file": str(file)}, {"HEADLIGHT_API_KEYS": KEY})

    other = hashlib.sha256(OTHER.encode()).hexdigest()
    assert settled.api_keys == (DIGEST, other, DIGEST, "0" * 64)


@pytest.mark.parametrize("text", ["", " \n,", "short", f"a:b:{KEY}", f"{KEY} {KEY}", "\u00e9" * 20])
def test_what_is_no_key_is_refused_without_being_shown(text: str, tmp_path: Path) -> None:
    """An empty file would open the service to all."""
    file = tmp_path / "keys"
    file.write_text(text)

    for flags, environ in (({"api_keys_file": file}, {}), ({}, {"HEADLIGHT_API_KEYS": text})):
        with pytest.raises(ValueError, match="api_keys: ") as refused:
            load(flags, environ)
        assert not text.strip(" \n,") or text not in str(refused.value)


def test_keys_are_not_read_from_the_settings_file(tmp_path: Path) -> None:
    """It is shared and shown; keys have a file of their own."""
    file = tmp_path / "headlight.yaml"
    file.write_text(f"api_keys: {KEY}\n")

    with pytest.raises(ValueError, match="api_keys_file") as refused:
        load({}, {}, file)
    assert KEY not in str(refused.value)
