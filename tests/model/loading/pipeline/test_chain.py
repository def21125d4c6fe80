"""A CrossEncoder that scores by layers behind a Pooling is sentence-transformers' own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Normalize, Pooling
from torch import nn

from model.errors import CheckpointError
from model.loading.checkpoint import Model
from model.packing import Sequence, pack_sequences
from model.task_heads import Classifier
from tests.model.loading.pipeline.conftest import TEXTS, WIDTH, change
from tests.model.loads import CPU, load

PAIRS = [(TEXTS[0], text) for text in TEXTS]


def last(inputs: int, outputs: int = 1) -> Dense:
    """What makes the scores."""
    plain = nn.Identity()
    return Dense(inputs, outputs, activation_function=plain, module_output_name="scores")


CHAINS: dict[str, Callable[[], list[nn.Module]]] = {
    "dense": lambda: [Pooling(WIDTH), last(WIDTH)],
    "dense, norm, dense": lambda: [
        Pooling(WIDTH, pooling_mode="cls"),
        Dense(WIDTH, 11, activation_function=nn.GELU()),
        LayerNorm(11),
        last(11),
    ],
    "classes": lambda: [Pooling(WIDTH, pooling_mode=("cls", "mean")), last(2 * WIDTH, 3)],
    "with no effect behind": lambda: [Pooling(WIDTH), last(WIDTH), Normalize()],
}


Saved = Callable[..., tuple[CrossEncoder, Path]]


@pytest.fixture(scope="module")
def made(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Put modules behind the small model, the same ones once; gives theirs as it loads again."""
    known: dict[str, tuple[CrossEncoder, Path]] = {}

    def make(*parts: nn.Module) -> tuple[CrossEncoder, Path]:
        if (name := repr(parts)) not in known:
            torch.manual_seed(3)
            for part in parts:
                for weight in part.parameters():
                    nn.init.normal_(weight)
            peer = CrossEncoder(modules=[Transformer(str(bert)), *parts], device="cpu")
            folder = tmp_path_factory.mktemp("made")
            peer.save_pretrained(str(folder), create_model_card=False)
            known[name] = CrossEncoder(str(folder), device="cpu"), folder
        return known[name]

    return make


@pytest.fixture
def save(made: Saved, tmp_path: Path) -> Saved:
    """Put modules behind the small model; gives theirs, and a folder of it to change."""

    def save(*parts: nn.Module) -> tuple[CrossEncoder, Path]:
        peer, folder = made(*parts)
        return peer, Path(shutil.copytree(folder, tmp_path / "saved"))

    return save


@torch.inference_mode()
def scores(model: Model) -> torch.Tensor:
    """What ours makes of PAIRS, in one batch."""
    assert isinstance(model.task_heads[0], Classifier)
    cut = model.tokenizer(PAIRS, model.max_tokens, "right")
    packed = pack_sequences([Sequence(pair.token_ids, pair.types) for pair in cut], CPU)
    tokens = model.encoder(packed).last
    return torch.stack(
        [model.task_heads[0](tokens[packed.rows(i)])["scores"] for i in range(len(PAIRS))]
    )


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "default"])
def test_scores_are_sentence_transformers(
    save: Saved,
    chain: Callable[[], list[nn.Module]],
    stored: bool,
) -> None:
    """With the stored activation, and with the library's own where none is stored."""
    peer, folder = save(*chain())
    if not stored:
        change(folder / "config_sentence_transformers.json", activation_fn=None)
        peer = CrossEncoder(str(folder), device="cpu")
    expected = peer.predict(PAIRS, convert_to_tensor=True).view(len(PAIRS), -1)

    model = load(folder)

    several = expected.shape[1] > 1
    assert model.tasks == ("encode", "classify", *(() if several else ("rerank",)))
    torch.testing.assert_close(scores(model), expected, rtol=0, atol=1e-5)


def test_the_layers_and_the_pooling_are_in_the_digest(
    save: Saved,
) -> None:
    """Of the same weights: the first token's vector instead of the mean."""
    _, folder = save(Pooling(WIDTH), last(WIDTH))
    before = load(folder).digest
    change(folder / "1_Pooling" / "config.json", pooling_mode="cls")

    assert load(folder).digest != before


def test_a_chain_without_scores_is_refused_by_name(
    save: Saved,
) -> None:
    """Its last Dense hands on a vector."""
    _, folder = save(Pooling(WIDTH), last(WIDTH))
    change(folder / "2_Dense" / "config.json", module_output_name="sentence_embedding")

    with pytest.raises(CheckpointError, match="module_output_name 'sentence_embedding'"):
        load(folder)
