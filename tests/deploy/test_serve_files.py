"""Every Serve file and RayService of deploy/ passes `headlight doctor --file`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from service.cli import main
from tests.manifests import manifests

SERVE = Path(__file__).parent.parent.parent / "deploy" / "serve"


@pytest.mark.parametrize("name", [*(file.name for file in SERVE.glob("*.yaml")), "rayservice.yaml"])
def test_what_deploy_holds_for_a_cluster_is_as_ray_reads_it(name: str, tmp_path: Path) -> None:
    """One line says so."""
    file = tmp_path / name
    file.write_text(manifests()[name] if name in manifests() else (SERVE / name).read_text())

    said = CliRunner().invoke(main, ["doctor", "--file", str(file)])

    assert (said.exit_code, said.stdout) == (0, f"ok    {file}  is as Ray's schema has it\n")
