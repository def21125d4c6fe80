"""A service that asks for keys, started as a user starts it."""

from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from tests.ray.conftest import Start

pytestmark = pytest.mark.ray

KEY = "canary-Key_123456789"
ASKED = {"inputs": ["All is well"]}


def test_a_key_lets_in_and_no_process_shows_it(start: "Start", tmp_path: Path) -> None:
    """Not in a command line, an environment or a log; flags reach the outermost layer too."""
    file = tmp_path / "keys"
    file.write_text(f"me:{KEY}\n")
    bearer = {"authorization": f"Bearer {KEY}"}

    with start("--api-keys-file", str(file), "--max-body-bytes", "1000") as service:
        with httpx.Client(base_url=service.url) as client:
            ready = client.get("/ready")
            refused = client.post("/v1/encode", json=ASKED)
            admitted = client.post("/v1/encode", json=ASKED, headers=bearer)
            large = client.post("/v1/encode", content=b" " * 1001, headers=bearer)
            unknown = client.post("/v1/encode", content=b" " * 1001)
        shown = [
            (pid, what)
            for pid in service.family()
            for what in ("cmdline", "environ")
            if KEY.encode() in Path(f"/proc/{pid}/{what}").read_bytes()
        ]
        logs = [path for path in service.directory().rglob("*") if path.is_file()]
        logged = [path for path in logs if KEY.encode() in path.read_bytes()]

    assert [ready.status_code, refused.status_code, admitted.status_code] == [200, 401, 200]
    assert [large.status_code, unknown.status_code] == [413, 401]
    assert shown == [] and logged == [] and logs
