"""Where a setting comes from, and what is refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings, load


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    """Each source in turn, for settings of every kind."""
    file = tmp_path / "headlight.yaml"
    file.write_text("port: 1\nreplicas: 2\nhost: file\n")

    settled = load(
        {"port": "3", "host": None}, {"HEADLIGHT_PORT": "2", "HEADLIGHT_REPLICAS": "4"}, file
    )

    assert (settled.port, settled.replicas, settled.host) == (3, 4, "file")


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ({"port": "0"}, {}),
        ({"replicas": "none"}, {}),
        ({}, {"HEADLIGHT_PROT": "1"}),
        ({"device": "tpu"}, {}),
        ({"served_model_name": "../x"}, {}),
        ({"max_embedding": "inf"}, {}),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused(
    flags: dict[str, str], environ: dict[str, str]
) -> None:
    """Out of bounds, of the wrong type, or unknown."""
    with pytest.raises(ValidationError):
        load(flags, environ)


def test_a_file_must_hold_settings(tmp_path: Path) -> None:
    """A list is not one."""
    file = tmp_path / "headlight.yaml"
    file.write_text("- port\n")

    with pytest.raises(ValueError, match="name: value"):
        load({}, {}, file)


def test_every_setting_says_what_it_is() -> None:
    """The README's table and --help are made of these sentences."""
    assert all(field.description for field in Settings.model_fields.values())
