"""Every Serve file, env file and RayService of deploy/ passes `headlight config check`."""

import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own age
    from service.deployment import check

from tests.manifests import manifests

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def test_what_deploy_holds_for_a_cluster_is_right(tmp_path: Path) -> None:
    """Serve files against the variables next to them, the chart's RayService against its own."""
    serve = sorted((DEPLOY / "serve").iterdir())
    service = tmp_path / "rayservice.yaml"
    service.write_text(manifests()["rayservice.yaml"])

    for files in (serve, [service]):
        found, right = check.check(files)

        assert [str(each) for each in found if each.wrong] == []
        assert len(right) == len(files) > 0
