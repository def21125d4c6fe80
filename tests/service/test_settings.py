"""Where a setting comes from, and what is refused."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from service import settings
from service.settings import Settings, load_settings


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    """Each source in turn, for settings of every kind."""
    file = tmp_path / "headlight.yaml"
    file.write_text("port: 1\nreplicas: 2\nhost: file\n")

    settled = load_settings(
        {"port": "3", "host": None}, {"HEADLIGHT_PORT": "2", "HEADLIGHT_REPLICAS": "4"}, file
    )

    assert (settled.port, settled.replicas, settled.host) == (3, 4, "file")


def test_an_empty_variable_is_none_but_for_what_guards_the_service() -> None:
    """Compose writes `${X:-}` for a variable that is not set."""
    assert load_settings({}, {"HEADLIGHT_MAX_TOKENS": "", "HEADLIGHT_DTYPE": ""}) == load_settings(
        {}, {}
    )
    assert load_settings(
        {}, {"HEADLIGHT_API_KEYS_FILE": ""}
    ).needs_key  # by a file that no start can read
    for name in ("API_KEYS", "TLS_CERT", "TLS_KEY"):
        with pytest.raises(ValueError):
            load_settings({}, {f"HEADLIGHT_{name}": ""})
    with pytest.raises(ValueError, match="HEADLIGHT_MAX_TOKEN: no such setting"):
        load_settings({}, {"HEADLIGHT_MAX_TOKEN": ""})


@pytest.mark.parametrize(
    "flags",
    [
        {"replicas": "none"},
        {"device": "tpu"},
        {"served_model_name": "../x"},
        {"tracing_ratio": "inf"},
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused(flags: dict[str, str]) -> None:
    """Out of bounds or of the wrong type; tests/service/test_cli.py has the unknown."""
    with pytest.raises(ValueError):
        load_settings(flags, {})


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"replicas": "3", "max_replicas": "7"}, "replicas: leave it out with max_replicas"),
        ({"min_replicas": "2"}, "min_replicas needs max_replicas"),
        ({"downscale_delay_seconds": "9"}, "downscale_delay_seconds needs max_replicas"),
        (
            {"min_replicas": "5", "max_replicas": "3"},
            "min_replicas 5 must not be more than max_replicas, which is 3",
        ),
    ],
)
def test_numbers_of_replicas_that_exclude_each_other_are_refused(
    flags: dict[str, str], line: str
) -> None:
    """Nothing that is said is ignored."""
    with pytest.raises(ValueError, match=line):
        load_settings(flags, {})


def test_replicas_are_fixed_or_between_bounds() -> None:
    """One by default, and never none."""
    fixed, free, bounded = (
        load_settings(flags, {})
        for flags in ({"replicas": 3}, {"max_replicas": 5}, {"min_replicas": 2, "max_replicas": 5})
    )

    assert [(each.fewest_replicas, each.most_replicas) for each in (fixed, free, bounded)] == [
        (3, 3),
        (1, 5),
        (2, 5),
    ]
    with pytest.raises(ValidationError):
        load_settings({"min_replicas": "0", "max_replicas": "2"}, {})


def test_a_file_must_hold_settings(tmp_path: Path) -> None:
    """A list is not one."""
    file = tmp_path / "headlight.yaml"
    file.write_text("- port\n")

    with pytest.raises(ValueError, match="name: value"):
        load_settings({}, {}, file)


def test_what_kubernetes_says_of_its_services_is_no_setting(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they are called; a setting of ours that looks alike stays one."""
    monkeypatch.setattr(logging.getLogger("service"), "propagate", True)
    address = "tcp://10.96.0.7:8000"
    theirs = {
        "HEADLIGHT_PORT": address,
        "HEADLIGHT_SERVICE_HOST": "10.96.0.7",
        "HEADLIGHT_SERVICE_PORT": "8000",
        "HEADLIGHT_SERVICE_PORT_HTTP": "8000",
        "HEADLIGHT_PORT_8000_TCP": address,
        "HEADLIGHT_PORT_8000_TCP_PROTO": "tcp",
        "HEADLIGHT_PORT_8000_TCP_PORT": "8000",
        "HEADLIGHT_PORT_8000_TCP_ADDR": "10.96.0.7",
        "HEADLIGHT_SERVE_SVC_PORT": address.replace("tcp", "udp"),
        "HEADLIGHT_SERVE_SVC_SERVICE_HOST": "10.96.0.7",
    }

    assert load_settings({}, theirs) == Settings()
    assert [record.getMessage() for record in caplog.records] == ["Kubernetes variables ignored"]
    assert caplog.records[0].reason == ", ".join(sorted(theirs))
    assert load_settings({}, {"HEADLIGHT_PORT": "8001"}).port == 8001
    assert len(caplog.records) == 1


def test_no_setting_has_a_name_that_kubernetes_uses() -> None:
    """It could not be set by its variable."""
    names = [f"HEADLIGHT_{name.upper()}" for name in Settings.model_fields]

    assert not [name for name in names if settings._set_by_kubernetes(name, "1")]
