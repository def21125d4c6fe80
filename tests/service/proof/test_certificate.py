"""service/proof/certificate.py"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model import kernels
from model.loading.checkpoint import Model
from service.files.loading import load_model
from service.files.weights import BUNDLED_MODEL, locate_model
from service.heads.samples import sample_texts
from service.proof.certificate import NO_CERTIFICATE, certify, encode_texts

CPU = torch.device("cpu")
TEXTS = sample_texts()[::20]
PLACES = 5e-7  # of a certificate's numbers, half of the last


def loaded(dtype: torch.dtype) -> Model:
    """The bundled model, by plain kernels."""
    return load_model(locate_model(BUNDLED_MODEL), CPU, dtype, kernels.PLAIN)


def cosines(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of every row with every other."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit @ unit.T


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The place of each value in their order."""
    places = np.empty(len(values))
    places[np.argsort(values)] = np.arange(len(values))
    return places


def test_the_certificate_is_what_float64_finds() -> None:
    """From the vectors of both models, each number by its definition."""
    model, plain = loaded(torch.bfloat16), loaded(torch.float32)
    with torch.inference_mode():
        pair = [encode_texts(one, TEXTS).double().numpy() for one in (model, plain)]
    ours, theirs = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in pair)
    each = np.sum(ours * theirs, axis=1)
    among = [cosines(rows) for rows in pair]
    upper = np.triu_indices(len(TEXTS), 1)
    order = np.corrcoef(ranks(among[0][upper]), ranks(among[1][upper]))[0, 1]
    for one in among:
        np.fill_diagonal(one, -2)
    nearest = [[set(np.argsort(-row)[:10]) for row in one] for one in among]
    kept = np.mean([len(one & other) / 10 for one, other in zip(*nearest, strict=True)])

    certificate = certify(model, plain, TEXTS)

    assert certificate is not None
    told = certificate.facts()
    assert told["texts"] == len(TEXTS) and told["neighbours"] == 10
    assert told["worst_cosine"] == pytest.approx(each.min(), abs=PLACES)
    assert told["mean_cosine"] == pytest.approx(each.mean(), abs=PLACES)
    assert told["rank_correlation"] == pytest.approx(order, abs=PLACES)
    assert told["neighbour_overlap"] == pytest.approx(kept, abs=PLACES)
    assert 0.999 < told["worst_cosine"] < told["mean_cosine"] < 1


def test_a_tokenizer_that_reads_no_english_has_no_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It would be that of [UNK] alone, and hold for no text of its own."""
    model = loaded(torch.float32)

    def unread(texts: Any, *cut: Any) -> Any:
        return [
            replace(one, token_ids=[101, *[100] * (len(one.token_ids) - 2), 102])
            for one in model.tokenizer(texts, *cut)
        ]

    blind = replace(model, tokenizer=unread)  # type: ignore[arg-type]

    assert certify(blind, blind, sample_texts()[::5]) is None
    assert [line.getMessage() for line in caplog.records] == [NO_CERTIFICATE]
