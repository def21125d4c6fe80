"""What Ray's controller is told once it starts, in its own process.

While Ray builds another version of an application, and after that failed, it does not know which
deployment takes the application's requests. So it names no replica to HAProxy, although the old
version serves.

Next to HAProxy it would start a proxy of its own, to answer while there is no replica. HAProxy
answers then by itself.
"""

from ray.serve._private.application_state import ApplicationStateManager
from ray.serve._private.proxy_state import ProxyStateManager

from service.cluster.ingress import DEPLOYMENT


def prepare() -> None:
    """Prepare a controller that starts (RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH)."""
    remember_ingress()
    # a process of 150 MB, next to HAProxy
    ProxyStateManager._start_fallback_proxy_if_needed = lambda *_: None  # type: ignore[method-assign]


def remember_ingress() -> None:
    """Make the controller remember which deployment takes an application's requests.

    One that replaces another while Ray does not know can only guess, and guesses ours.
    """
    ask_ray, known = ApplicationStateManager.get_ingress_deployment_name, dict[str, str]()

    def remembered_name(self: ApplicationStateManager, name: str) -> str | None:
        """Return Ray's answer for an application, or else the last one that it gave."""
        if name not in self._application_states:
            known.pop(name, None)  # what comes by this name later is another application
            return None
        name_now = ask_ray(self, name)
        if name_now is not None:
            known[name] = name_now
        return name_now or known.get(name, DEPLOYMENT)

    ApplicationStateManager.get_ingress_deployment_name = remembered_name  # type: ignore[method-assign]
