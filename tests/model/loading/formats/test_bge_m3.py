"""BGE-M3's two linears against FlagEmbedding's formulas over transformers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model import kernels
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.pooling import pool_sequence
from model.task_heads import Lexical, VectorHead, match_vectors
from tests.bge_m3 import SIZE, TEXTS, WIDTH, bge_m3

CPU = torch.device("cpu")
CLOSE = 1e-5
SPARSE, COLBERT = "sparse_linear.safetensors", "colbert_linear.safetensors"


def load(folder: Path) -> Model:
    """A folder's model as we load it."""
    return checkpoint.load_checkpoint(
        folder, CPU, torch.float32, kernels.choose_kernels(CPU, torch.float32)
    )


@torch.inference_mode()
def ours(model: Model, batch: list[list[int]], **choices: Any) -> list[dict[str, Tensor]]:
    """What one pass makes of each sequence of a batch: dense, sparse and many vectors.

    Args:
        choices: of the sparse weights.
    """
    lexical, vectors = model.task_heads
    assert isinstance(lexical, Lexical) and isinstance(vectors, VectorHead)
    encoded = model.encoder(model.encoder.pack([Sequence(ids) for ids in batch]))
    made = []
    for index, ids in enumerate(batch):
        tokens = encoded.last[encoded.packed.rows(index)]
        own = replace(lexical, token_ids=ids, **choices)
        made.append(
            {"dense": pool_sequence(tokens, model.pooling), **own(tokens), **vectors(tokens)}
        )
    return made


@pytest.mark.parametrize("modules", [True, False], ids=["of the hub", "of FlagEmbedding"])
def test_one_pass_makes_what_flagembedding_makes(tmp_path: Path, modules: bool) -> None:
    """Dense, sparse and many vectors of each text, alone and in a mixed batch to the bit."""
    theirs, size = bge_m3(tmp_path, modules=modules), SIZE
    model = load(tmp_path)
    batch = [model.tokenizer([(text,)], model.max_tokens, "right")[0].token_ids for text in TEXTS]

    assert model.tasks == ("encode", "sparse", "multi_vector") and model.states_pooling
    assert batch == [theirs.ids(text) for text in TEXTS]
    for ids, found in zip(batch, ours(model, batch), strict=True):
        expected, (alone,) = theirs.encode_ids(ids), ours(model, [ids])
        torch.testing.assert_close(found["dense"], expected.dense, rtol=0, atol=CLOSE)
        assert found["indices"].tolist() == sorted(expected.sparse)
        values = torch.tensor([expected.sparse[id] for id in sorted(expected.sparse)])
        torch.testing.assert_close(found["values"], values, rtol=0, atol=CLOSE)
        assert found["kept"].tolist() == [*range(1, len(ids))]
        assert found["vectors"].shape == (len(ids) - 1, size)
        torch.testing.assert_close(found["vectors"], expected.colbert, rtol=0, atol=CLOSE)
        assert all(torch.equal(found[name], alone[name]) for name in found)


def test_special_tokens_have_no_weight_wherever_they_stand(tmp_path: Path) -> None:
    """Those that a text spells out, and unknown characters, too; others have that of their best."""
    theirs, model = bge_m3(tmp_path), load(tmp_path)
    ids = theirs.ids(TEXTS[4])
    (found,) = ours(model, [ids])

    assert {0, 2, 3} < {*ids[1:-1]}
    assert not {0, 1, 2, 3} & {*found["indices"].tolist()}
    assert model.task_heads[0].unused == {0, 1, 2, 3}  # type: ignore[union-attr]


def test_the_files_name_the_special_tokens_without_a_weight(tmp_path: Path) -> None:
    """Of a class that names none, those alone that tokenizer_config.json names."""
    bge_m3(tmp_path)
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))

    assert load(tmp_path).task_heads[0].unused == {2}  # type: ignore[union-attr]


def test_the_largest_weights_above_a_threshold_stay(tmp_path: Path) -> None:
    """By id again."""
    theirs, model = bge_m3(tmp_path), load(tmp_path)
    ids = theirs.ids(TEXTS[1])
    (whole,) = ours(model, [ids])
    order = whole["values"].argsort(descending=True)
    assert len(order) > 3

    (few,), (large,) = (
        ours(model, [ids], **choice)
        for choice in ({"k": 3}, {"threshold": float(whole["values"][order[2]])})
    )

    assert few["indices"].tolist() == sorted(whole["indices"][order[:3]].tolist())
    assert large["indices"].tolist() == sorted(whole["indices"][order[:2]].tolist())
    lexical = model.task_heads[0]
    assert (lexical.count_bytes(7), replace(lexical, k=3).count_bytes(7)) == (56, 24)  # type: ignore[call-arg]


def test_what_has_no_token_of_its_own_has_no_weight_and_no_vector(tmp_path: Path) -> None:
    """The first token has a vector of the text alone."""
    model = load(bge_m3(tmp_path).folder)
    alone, special = ours(model, [[7], [0, 2]])

    assert alone["vectors"].shape == (0, SIZE) and alone["kept"].tolist() == []
    assert special["kept"].tolist() == [1] and special["indices"].tolist() == []
    assert special["values"].dtype == torch.float32


def test_a_weight_that_is_no_number_is_not_dropped(tmp_path: Path) -> None:
    """What is not finite must reach the check of answers."""
    lexical = load(bge_m3(tmp_path).folder).task_heads[0]
    assert isinstance(lexical, Lexical)
    tokens = torch.full((3, WIDTH), torch.nan)

    found = replace(lexical, token_ids=[0, 9, 2])(tokens)

    assert found["indices"].tolist() == [9] and not found["values"].isfinite().any()


def test_a_score_is_the_mean_over_the_querys_vectors(tmp_path: Path) -> None:
    """Where FlagEmbedding divides by their number, and a ColBERT does not."""
    theirs, model = bge_m3(tmp_path), load(tmp_path)
    query, document = (ours(model, [theirs.ids(text)])[0]["vectors"] for text in TEXTS[:2])
    vectors = model.task_heads[1]
    assert isinstance(vectors, VectorHead)

    found = match_vectors(query, document, vectors.mean)

    expected = theirs.parts(*TEXTS[:2])["multi_vector"]
    assert found.score == pytest.approx(expected, abs=CLOSE)
    assert match_vectors(query, document).score == pytest.approx(expected * len(query), abs=CLOSE)


def test_many_vectors_may_be_smaller_than_a_tokens(tmp_path: Path) -> None:
    """FlagEmbedding's colbert_dim; the price knows the size."""
    model = load(bge_m3(tmp_path, size=5).folder)
    vectors = model.task_heads[1]
    assert isinstance(vectors, VectorHead)

    assert vectors.size == 5
    assert vectors.count_bytes(7) == 6 * (5 * 4 + 4) and vectors.count_flops(7) == 2 * 6 * 5 * WIDTH


def test_other_linears_are_another_model(tmp_path: Path) -> None:
    """Its digest is over their bytes, too."""
    digests = {load(bge_m3(tmp_path).folder).digest}
    for name in (SPARSE, COLBERT):
        tensors = load_file(tmp_path / name)
        save_file({**tensors, "bias": tensors["bias"] + 1}, tmp_path / name)
        digests.add(load(tmp_path).digest)

    assert len(digests) == 3


def without(name: str) -> Callable[[Path], None]:
    """Take a file away."""
    return lambda folder: (folder / name).unlink()


def changed(name: str, **tensors: Tensor | None) -> Callable[[Path], None]:
    """Put other tensors into a file; None takes one out."""

    def change(folder: Path) -> None:
        whole = {**load_file(folder / name), **tensors}
        held = {key: one for key, one in whole.items() if one is not None}
        save_file(held, folder / name)

    return change


def classifying(folder: Path) -> None:
    """Give config.json another task head, and the file its tensors."""
    stored = json.loads((folder / "config.json").read_text())
    stored["architectures"] = ["XLMRobertaForTokenClassification"]
    (folder / "config.json").write_text(json.dumps(stored | {"id2label": {"0": "a", "1": "b"}}))
    own = {"classifier.weight": torch.zeros(2, WIDTH), "classifier.bias": torch.zeros(2)}
    changed("model.safetensors", **own)(folder)


def pickled(folder: Path) -> None:
    """Leave one linear as FlagEmbedding saved it."""
    (folder / COLBERT).rename(folder / "colbert_linear.pt")


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no sparse one": (without(SPARSE), f"has {COLBERT} and lacks {SPARSE}$"),
    "no colbert one": (without(COLBERT), f"has {SPARSE} and lacks {COLBERT}$"),
    "a pickle": (pickled, f"lacks {COLBERT}; colbert_linear.pt is a pickle: .*headlight convert"),
    "two weights": (
        changed(SPARSE, weight=torch.ones(2, WIDTH)),
        rf"^{SPARSE}: weight is \(2, {WIDTH}\), not \(1, {WIDTH}\)$",
    ),
    "narrow": (
        changed(COLBERT, weight=torch.ones(SIZE, WIDTH - 1)),
        rf"^{COLBERT}: weight is \({SIZE}, {WIDTH - 1}\), not \({SIZE}, {WIDTH}\)$",
    ),
    "no bias": (changed(COLBERT, bias=None), f"^{COLBERT}: missing bias$"),
    "one more": (changed(SPARSE, scale=torch.ones(1)), f"^{SPARSE}: unexpected scale$"),
    "not a number": (
        changed(SPARSE, bias=torch.full((1,), torch.nan)),
        f"^{SPARSE}: bias holds NaN or infinity$",
    ),
    "another task head": (classifying, f"{SPARSE} and {COLBERT}: not supported: next to another"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_linears_that_are_not_whole_are_refused(tmp_path: Path, name: str) -> None:
    """By name, when the model is loaded."""
    change, message = REFUSED[name]
    bge_m3(tmp_path)
    change(tmp_path)

    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)
    if "lacks" in message:  # before any weight is read
        with pytest.raises(CheckpointError, match=message):
            checkpoint.read_sizes(tmp_path)
