"""What Ray's controller remembers, held against the installed Ray's own class."""

import warnings
from types import SimpleNamespace

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own age
    from ray.serve._private.application_state import ApplicationStateManager

    from service.cluster import controller


States = dict[str, SimpleNamespace]


@pytest.fixture
def states() -> States:
    """One application, of which Ray knows which deployment takes its requests."""
    return {"chat": SimpleNamespace(ingress_deployment="Chat")}


@pytest.fixture
def manager(states: States, monkeypatch: pytest.MonkeyPatch) -> ApplicationStateManager:
    """A controller's manager of these."""
    asked = ApplicationStateManager.get_ingress_deployment_name
    monkeypatch.setattr(ApplicationStateManager, "get_ingress_deployment_name", asked)
    controller.remember_ingress()
    manager = ApplicationStateManager.__new__(ApplicationStateManager)
    manager._application_states = states  # type: ignore[assignment]
    return manager


def test_while_ray_builds_another_version_the_old_ones_deployment_is_known(
    manager: ApplicationStateManager, states: States
) -> None:
    """Then Ray says None, also after the build failed."""
    named = [manager.get_ingress_deployment_name("chat")]
    for ray in (None, "Other", None):
        states["chat"].ingress_deployment = ray
        named.append(manager.get_ingress_deployment_name("chat"))

    assert named == ["Chat", "Chat", "Other", "Other"]


def test_an_application_that_is_gone_is_known_no_more(
    manager: ApplicationStateManager, states: States
) -> None:
    """Nor is its deployment taken for that of another by its name."""
    named = [manager.get_ingress_deployment_name("chat")]
    del states["chat"]
    named.append(manager.get_ingress_deployment_name("chat"))
    states["chat"] = SimpleNamespace(ingress_deployment=None)
    named.append(manager.get_ingress_deployment_name("chat"))

    assert named == ["Chat", None, "Encoder"]


def test_a_controller_that_starts_meanwhile_takes_it_for_ours(
    manager: ApplicationStateManager, states: States
) -> None:
    """It asks for the running replicas of that deployment: another application has none."""
    states["headlight"] = SimpleNamespace(ingress_deployment=None)

    assert manager.get_ingress_deployment_name("headlight") == "Encoder"
