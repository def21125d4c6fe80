"""Every Serve file, env file and RayService of deploy/ passes `headlight config check`."""

import warnings
from pathlib import Path

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own age
    from service.deployment import check

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def test_what_deploy_holds_for_a_cluster_is_right() -> None:
    """Serve files against the variables beside them, RayServices against their own."""
    serve = sorted((DEPLOY / "serve").iterdir())
    kuberay = sorted((DEPLOY / "kuberay").iterdir())
    services = [file for file in kuberay if "kind: RayService\n" in file.read_text()]

    for files in (serve, services):
        found, right = check.check(files)

        assert [str(each) for each in found if each.wrong] == []
        assert len(right) == len(files) > 0
