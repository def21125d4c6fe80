"""DeBERTa's scores in every form, and the forms that are refused by name."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from model import families, kernels
from model.attention.disentangled import distance_rows, queries_per_pass
from model.config import Relative
from model.errors import CheckpointError
from model.loading import checkpoint
from tests.model.loading.test_families import (
    BATCH,
    CPU,
    MOST,
    furthest,
    inputs,
    moved,
    saved,
    theirs,
)

FAMILY = "deberta-v2"
FORMS: dict[str, dict[str, Any]] = {
    "queries alone": {"pos_att_type": "c2p"},
    "keys alone": {"pos_att_type": ["p2c"]},
    "a row for each distance": {"position_buckets": -1},
    "fewer rows than distances": {"position_buckets": -1, "max_relative_positions": 7},
    "furthest before the last": {"max_relative_positions": 21},
    "an odd number of buckets": {"position_buckets": 9},
    "projections of their own": {"share_att_key": False},
    "one projection of its own": {"share_att_key": False, "pos_att_type": ["c2p"]},
    "no norm": {"norm_rel_ebd": "none"},
    "positions too": {"position_biased_input": True},
    "no types": {"type_vocab_size": 0},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_the_scores_is_theirs(tmp_path: Path, form: dict[str, Any]) -> None:
    """States and maps of the longest sequence; and bits do not follow from the batch."""
    reference = theirs(FAMILY, **form)
    ours = saved(reference, tmp_path)

    assert furthest(reference, ours, FAMILY, "ids", MOST) <= 1e-5
    assert moved(ours, [inputs(FAMILY, "ids", n, reference)[0] for n in BATCH]) == 0


def test_a_sequence_of_several_tiles_is_theirs(tmp_path: Path) -> None:
    """All of a tile, one token more, and two tiles; most distances share a row."""
    lengths = (512, 513, 700)
    assert [queries_per_pass(n) < n for n in lengths] == [False, True, True]
    reference = theirs(FAMILY, max_position_embeddings=lengths[-1], position_buckets=64)
    ours = saved(reference, tmp_path)

    assert max(furthest(reference, ours, FAMILY, "ids", n) for n in lengths) <= 1e-5
    assert moved(ours, [inputs(FAMILY, "ids", n, reference)[0] for n in lengths]) == 0


@pytest.mark.parametrize("tokens", [1, 2, 129, 511, 512])
@pytest.mark.parametrize(("buckets", "furthest"), [(256, 512), (64, 512), (32, 128), (7, 64)])
def test_every_distance_has_their_row(buckets: int, furthest: int, tokens: int) -> None:
    """The furthest lies on the edge between two, where the last bit of a logarithm decides."""
    sequence = torch.zeros(1, tokens, 3)
    distances = build_relative_position(sequence, sequence, buckets, furthest)[0]
    theirs = (distances + buckets).clamp(0, 2 * buckets - 1)

    ours = distance_rows(Relative(reach=buckets, furthest=furthest), 512)

    middle = 511  # where the distance is 0
    place = torch.arange(tokens)
    assert torch.equal(ours[middle + place[None, :] - place[:, None]], theirs)


REFUSED = {
    "no distances": ("relative_attention", False),
    "a convolution": ("conv_kernel_size", 3),
    "heads of another size": ("attention_head_size", 8),
    "an unknown term": ("pos_att_type", "p2p|c2p"),
    "no term": ("pos_att_type", None),
    "narrow embeddings": ("embedding_size", 24),
    "no logarithm": ("max_relative_positions", 7),
}


@pytest.mark.parametrize(("key", "value"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_name(key: str, value: object) -> None:
    """In one line, with its value."""
    config = {**theirs(FAMILY).config.to_dict(), key: value}

    with pytest.raises(CheckpointError, match=f"not supported: .*{key} {re.escape(repr(value))}"):
        families.read_config_and_family(config)


def test_a_table_of_positions_that_is_not_read_may_be_there(tmp_path: Path) -> None:
    """transformers passes over it, as over the parts of its training."""
    saved(theirs(FAMILY), tmp_path)
    path = tmp_path / "model.safetensors"
    names = ("deberta.embeddings.position_embeddings", "lm_predictions.lm_head.dense")
    save_file(load_file(path) | {f"{name}.weight": torch.zeros(5, 3) for name in names}, path)

    assert (
        checkpoint.load_checkpoint(
            tmp_path, CPU, torch.float32, kernels.PLAIN
        ).config.relative.terms
        == 2
    )
