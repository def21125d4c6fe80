"""What Ray's controller remembers, held against the installed Ray's own class."""

import warnings
from types import SimpleNamespace

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own age
    from ray.serve._private.application_state import ApplicationStateManager

    from service.cluster import controller


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> ApplicationStateManager:
    """A controller's manager with one application, which another one of Ray's would not know."""
    asked = ApplicationStateManager.get_ingress_deployment_name
    monkeypatch.setattr(ApplicationStateManager, "get_ingress_deployment_name", asked)
    controller.remember()
    manager = ApplicationStateManager.__new__(ApplicationStateManager)
    manager._application_states = {"chat": SimpleNamespace(ingress_deployment="Chat")}  # type: ignore[dict-item]
    return manager


def test_while_ray_builds_another_version_the_old_ones_deployment_is_known(
    manager: ApplicationStateManager,
) -> None:
    """Then Ray says None, also after the build failed."""
    (state,) = manager._application_states.values()
    named = [manager.get_ingress_deployment_name("chat")]
    for ray in (None, "Other", None):
        state.ingress_deployment = ray  # type: ignore[misc]
        named.append(manager.get_ingress_deployment_name("chat"))

    assert named == ["Chat", "Chat", "Other", "Other"]


def test_an_application_that_is_gone_is_known_no_more(manager: ApplicationStateManager) -> None:
    """Nor is its deployment taken for that of another by its name."""
    (name, state), named = manager._application_states.popitem(), []
    named.append(manager.get_ingress_deployment_name(name))
    state.ingress_deployment = None  # type: ignore[misc]
    manager._application_states[name] = state
    named.append(manager.get_ingress_deployment_name(name))

    assert named == [None, "Encoder"]


def test_a_controller_that_starts_meanwhile_takes_it_for_ours(
    manager: ApplicationStateManager,
) -> None:
    """It asks for the running replicas of that deployment: another application has none."""
    manager._application_states["headlight"] = SimpleNamespace(ingress_deployment=None)  # type: ignore[assignment]

    assert manager.get_ingress_deployment_name("headlight") == "Encoder"
