"""How much of a question and a state fits, next to Laya's own library."""

import random

import pytest
from laya.common import build_sequence
from transformers import PreTrainedTokenizerFast

from model.text.question import Window, fit_question
from service.files.weights import BUNDLED_MODEL, locate_model


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """The bundled model's tokenizer, as transformers reads it."""
    folder = locate_model(BUNDLED_MODEL).folder
    marks = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **marks)


@pytest.mark.parametrize("seed", range(40))
def test_as_much_is_kept_as_by_the_library(tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Of long and short parts, in wide and narrow windows; each letter is a token."""
    chance = random.Random(seed)
    window = Window(chance.choice([64, 128, 509]), chance.choice([32, 61, 192]))
    counts = [chance.choice([1, 3, 7, 50, 97]) for _ in range(chance.choice([1, 2, 3, 12, 37]))]
    instructions, state = chance.choice([1, 15, 90]), chance.choice([0, 5, 41, 700])
    question = {
        "t": "choice",
        "ins": "a " * instructions,
        "crit": {f"{'b ' * count}c{'d' * place}": None for place, count in enumerate(counts)},
    }
    options = [
        len(tokenizer(" " + text, add_special_tokens=False).input_ids) for text in question["crit"]
    ]
    ids, markers, options_kept, state_kept = build_sequence(
        tokenizer,
        "e " * state,
        question,
        *window,
        return_stats=True,
        return_truncation_stats=True,
    )

    fit = fit_question(window, instructions + 3, options, state)  # "choice question:" are 3

    assert fit.total == len(ids)
    assert fit.state == state_kept["state_tokens_used"]
    assert (fit.last_marker < window.sequence) == (len(markers) == len(counts))
    if len(markers) == len(counts):
        assert fit.last_marker == markers[-1]
        steps = [second - first for first, second in zip(markers, markers[1:], strict=False)]
        assert [1 + kept for kept in fit.options[:-1]] == steps
        assert markers[0] == 2 + fit.instructions
    limit = options_kept["tokens_per_option"]
    assert limit is None or max(fit.options) < max(limit, 1)
