"""Several models in one service: what each is called."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from service.api import ROUTES
from service.cluster import model_settings
from service.cluster.choose_model import TAKEN
from service.cluster.model_settings import load_models
from service.preflight import machine
from service.tables.settings import Settings

FIRST = "all-MiniLM-L6-v2"


@pytest.mark.parametrize("folder", ["./embed", "./v1", "./Headlight", "/srv/日本", "..", "/", "-"])
def test_a_model_takes_no_path_of_the_service(folder: str) -> None:
    """It would answer in its place; the refusal names the setting that gives it another."""
    with pytest.raises(ValueError, match="no model's place: give it another served_model_name"):
        load_models([FIRST, folder], {}, {})


def test_the_first_model_stands_at_the_root_whatever_it_is_called(tmp_path: Path) -> None:
    """And another by the name that it is given."""
    file = tmp_path / "models.yaml"
    file.write_text("models: [{model: ./v1}, {model: ./embed, served_model_name: mine}]")

    assert [each.model for each in load_models([], {}, {}, file)] == ["./v1", "./embed"]


def test_no_model_may_be_called_as_any_route_begins() -> None:
    """Nor as Ray's paths and ours."""
    begins = {route.path.split("/")[1] for route in ROUTES} - {""}

    assert begins | {"-"} == TAKEN


@pytest.mark.parametrize(
    ("count", "flags", "refused"),
    [
        (4, {}, ""),
        (8, {}, ""),
        (9, {}, "the models need 9 cores"),
        (2, {"threads": 2}, ""),
        (2, {"threads": 3}, f"{FIRST} needs 3 cores"),
        (2, {"replicas": 3}, f"{FIRST} needs 3 cores"),
        (9, {"device": "cuda"}, ""),
        (9, {"address": "auto"}, ""),
    ],
)
def test_models_share_cores_up_to_four_threads_on_one(
    monkeypatch: pytest.MonkeyPatch, count: int, flags: dict[str, object], refused: str
) -> None:
    """Each alone has to fit the machine, of two cores here."""
    monkeypatch.setattr(model_settings, "count_cores", lambda: 2)
    names = [FIRST, *(f"./m{number}" for number in range(count - 1))]

    with pytest.raises(ValueError, match=f"^{refused}") if refused else nullcontext():
        found = model_settings.load_models(names, flags, {})
        assert [each.machine_replicas for each in found] == [count] * count


def test_the_doctor_says_what_shared_cores_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing where there are enough; no model lacks a core then."""
    monkeypatch.setattr(machine, "count_cores", lambda: 2)
    one_of_four = Settings(other_replicas=3)

    (finding,) = machine.describe_sharing(5)

    assert finding.grade == "note" and "5 threads of all models share 2 cores" in finding.what
    assert "takes 2.5 times as long" in finding.what
    assert not [*machine.describe_sharing(2)]
    assert [each.grade for each in machine.check_cores(one_of_four)] == ["ok"]
