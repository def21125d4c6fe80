"""Ray's HAProxy configuration with what it lacks, held against the installed Ray's own template."""

import subprocess
from pathlib import Path

import pytest
from jinja2 import Environment
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from service import haproxy

CONFIG = """\
global
    log stderr local0 info
    stats socket /run/admin mode 666 level admin expose-fd listeners
defaults
    mode http
    errorfile 502 /run/500.http
frontend prometheus
    bind :9101
frontend http_frontend
    bind *:8000
listen stats
  bind *:8404
"""


def test_requests_are_taken_whole_and_in_time() -> None:
    """What came whole can be sent to another replica; the defaults hold for every section."""
    lines = haproxy.rewrite(CONFIG).splitlines()

    start = lines.index("defaults")
    assert lines[start + 1 : start + 3] == [
        "    option http-buffer-request",
        "    timeout http-request 10s",
    ]


def test_only_the_service_listens_for_others() -> None:
    """State and metrics of HAProxy are for this machine; the service's own address stays."""
    config = haproxy.rewrite(CONFIG)

    assert "bind 127.0.0.1:9101\n" in config
    assert "bind 127.0.0.1:8404\n" in config
    assert "bind *:8000\n" in config


def test_the_admin_socket_is_its_owners() -> None:
    """Whoever may write there may redirect the service."""
    assert " mode 600 level admin" in haproxy.rewrite(CONFIG)


def test_haproxys_errors_keep_their_status() -> None:
    """Ray's pages make a 500 of 502 to 504, which no client retries."""
    assert "errorfile" not in haproxy.rewrite(CONFIG)


def test_requests_are_not_logged_one_by_one() -> None:
    """Nobody rotates the file."""
    assert "log stderr local0 notice\n" in haproxy.rewrite(CONFIG)


def test_a_second_time_changes_nothing() -> None:
    """Ray may start HAProxy twice on one file."""
    once = haproxy.rewrite(CONFIG)

    assert haproxy.rewrite(once) == once


def test_a_file_without_defaults_is_refused() -> None:
    """Rather no HAProxy than one that breaks the promise silently."""
    with pytest.raises(ValueError, match="no defaults section"):
        haproxy.rewrite("global\n")


def test_the_installed_rays_template_has_what_is_rewritten() -> None:
    """Each line that the rewrite looks for is in Ray's template, so that none is missed."""
    text = Environment().from_string(HAPROXY_CONFIG_TEMPLATE)
    made = text.render(
        config={
            "error_file_path": "/500.http",
            "metrics_port": 1,
            "stats_port": 2,
            "log_target": "stderr",
        },
        route_info={"status": 200},
    )

    before, after = made.splitlines(), haproxy.rewrite(made).splitlines()

    gone = {line.strip() for line in set(before) - set(after)}
    assert gone == {
        "log stderr local0 info",
        "stats socket  mode 666 level admin expose-fd listeners",
        "errorfile 502 /500.http",
        "errorfile 503 /500.http",
        "errorfile 504 /500.http",
        "bind :1",
        "bind *:2",
    }


def test_the_wrapper_becomes_haproxy(tmp_path: Path) -> None:
    """Run as Ray runs it: same process, arguments passed on, the file rewritten."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(
        "defaults\n    mode http\n    timeout client 1s\n    timeout server 1s\n    timeout connect 1s\n"
    )

    checked = subprocess.run(
        [haproxy.__file__, "-c", "-f", config], capture_output=True, text=True, check=False
    )

    assert "option http-buffer-request" in config.read_text()
    assert "Configuration file" in checked.stdout + checked.stderr
