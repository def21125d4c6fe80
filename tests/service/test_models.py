"""Several models in one service: what each is called."""

from pathlib import Path

import pytest

from service.api import ROUTES
from service.cluster.choice import TAKEN
from service.models import load_models

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
