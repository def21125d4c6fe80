"""model/config.py"""

import dataclasses

import pytest

from model.config import EncoderConfig

SIZES = EncoderConfig(
    family="bert",
    vocabulary=41,
    width=15,
    layers=2,
    heads=3,
    feed_forward=23,
    max_tokens=11,
    norm_eps=1e-12,
    embedding_width=15,
    types=7,
)


def test_heads_share_the_width_equally() -> None:
    """A head has width / heads channels."""
    assert SIZES.head_dim == 5


def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers() -> None:
    """The message names what does not fit."""
    with pytest.raises(ValueError, match=r"heads \(2\) must divide width \(15\)"):
        dataclasses.replace(SIZES, heads=2)


def test_the_sizes_of_loaded_weights_cannot_be_changed() -> None:
    """The config fixes the weights, so it is fixed itself."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        SIZES.width = 30  # type: ignore[misc]
