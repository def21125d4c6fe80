"""Where a setting comes from, and what is refused."""

import logging
from pathlib import Path

import pytest

from service.tables import sources
from service.tables.settings import Settings
from service.tables.sources import load_settings, settle


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
        (
            {"replicas": "3", "max_replicas": "7"},
            "--replicas and --max-replicas exclude each other; the least is --min-replicas",
        ),
        ({"min_replicas": "2"}, "--min-replicas needs --max-replicas"),
        ({"downscale_delay_seconds": "9"}, "--downscale-delay-seconds needs --max-replicas"),
        (
            {"min_replicas": "5", "max_replicas": "3"},
            "--min-replicas must be at most --max-replicas, which is 3, got 5",
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
    with pytest.raises(ValueError):
        load_settings({"min_replicas": "0", "max_replicas": "2"}, {})


def test_a_file_must_hold_settings(tmp_path: Path) -> None:
    """A list is not one."""
    file = tmp_path / "headlight.yaml"
    for text, said in (
        (b"- port\n", "must hold settings in YAML, one `name: value` per line"),
        (b"1: 2\n", "must hold settings in YAML, one `name: value` per line"),
        (b"port: [\n", "is not YAML at line 2, column 1"),
        (b"port: \xff\n", "is not YAML"),
    ):
        file.write_bytes(text)
        with pytest.raises(ValueError, match=f"^{file} {said}"):
            load_settings({}, {}, file)


@pytest.mark.parametrize(
    ("name", "value", "partner"),
    [
        ("port", "80000", ""),
        ("served_model_name", "../x", ""),
        ("min_replicas", "2", "max_replicas"),
        ("tls_cert", "/x", "tls_key"),
        ("max_tokens", "400000", "max_request_tokens"),
    ],
)
def test_an_error_names_settings_as_they_were_typed(
    name: str, value: str, partner: str, tmp_path: Path
) -> None:
    """By a flag, a variable, a file or a Serve file; a missing partner as its setting was."""
    file = tmp_path / "headlight.yaml"
    file.write_text(f"{name}: {value}\n")
    for read, spelled in (
        (lambda: load_settings({name: value}, {}), lambda one: "--" + one.replace("_", "-")),
        (
            lambda: load_settings({}, {f"HEADLIGHT_{name.upper()}": value}),
            lambda one: f"HEADLIGHT_{one.upper()}",
        ),
        (lambda: load_settings({}, {}, file), str),
        (lambda: settle({}, {}, {}, {name: value}, "args."), lambda one: f"args.{one}"),
    ):
        with pytest.raises(ValueError) as refused:
            read()
        said = str(refused.value)
        assert said.startswith(f"{spelled(name)} ") and (not partner or spelled(partner) in said)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("port", "80000", "must be at most 65535, got 80000"),
        ("port", "", "must be a whole number, got ''"),
        ("host", "", "must not be empty, got ''"),
        ("deadline_seconds", "10s", "must be a number, got '10s'"),
        ("access_log", "maybe", "must be true or false, got 'maybe'"),
        ("dtype", "fp16", "must be 'auto', 'float32', 'bfloat16' or 'float16', got 'fp16'"),
        ("tracing", "x", "must be console, file:PATH or a URL of http or https, got 'x'"),
        (
            "adapter",
            "lora",
            "must be NAME=FOLDER such as law=/srv/law, with a different NAME for each, got 'lora'",
        ),
        ("max_body_bytes", "1000000000", "must be at most 67108864, 1/8 of --max-held-bytes, got"),
    ],
)
def test_an_error_says_what_is_expected_and_what_came(name: str, value: str, said: str) -> None:
    """In our words, not those of a library."""
    with pytest.raises(ValueError) as refused:
        load_settings({name: value}, {})
    assert str(refused.value).startswith(f"--{name.replace('_', '-')} {said}")


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

    assert not [name for name in names if sources._set_by_kubernetes(name, "1")]
