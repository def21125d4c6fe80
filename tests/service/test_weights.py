"""What --model names."""

from pathlib import Path

import pytest

from service.weights import BUNDLED, ModelNotFound, locate


def test_the_bundled_model_and_a_folder_are_found_by_name(tmp_path: Path) -> None:
    """The folder's own name becomes the model's."""
    (tmp_path / "mine").mkdir()

    assert (locate(BUNDLED)[0] / "model.safetensors").is_file()
    assert locate(str(tmp_path / "mine")) == (tmp_path / "mine", "mine")


def test_anything_else_is_refused_by_name() -> None:
    """Nothing is fetched or guessed."""
    with pytest.raises(ModelNotFound, match="no folder nowhere/at-all"):
        locate("nowhere/at-all")
