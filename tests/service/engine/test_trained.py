"""A model that makes the same of every text is refused, unless it is wanted."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from model import kernels
from model.loading.checkpoint import Model
from service.files.loading import load_model
from service.files.weights import ModelSource
from service.heads.sentences import pick_evenly
from service.pipeline.replica import Replica
from service.proof.comparison import NotTrustworthy, check_tells_texts_apart
from service.tables.settings import Settings
from tests import task_heads
from tests.laya_models import make_laya

CPU = torch.device("cpu")
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")


def zero(weights: dict[str, torch.Tensor]) -> None:
    """All of them."""
    for each in weights.values():
        each.zero_()


def zero_head(weights: dict[str, torch.Tensor]) -> None:
    """As some begin to be trained."""
    for name in ("classifier.weight", "classifier.bias"):
        weights[name].zero_()


def constant(weights: dict[str, torch.Tensor]) -> None:
    """The embedding of every word; those of places differ."""
    table = weights["bert.embeddings.word_embeddings.weight"]
    table[:] = table[2000]


def norm(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    """What a layer norm gives is its bias, whatever it is given."""

    def collapse(weights: dict[str, torch.Tensor]) -> None:
        weights[f"bert.{name}.LayerNorm.weight"].zero_()
        weights[f"bert.{name}.LayerNorm.bias"].copy_(torch.linspace(-1, 1, 15))

    return collapse


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small checkpoint of random weights with each head."""
    folders = {head: tmp_path_factory.mktemp(head) for head in HEADS}
    for head, folder in folders.items():
        task_heads.checkpoint(folder, head)
    return folders


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], None], to: Path) -> Path:
    """A copy of a checkpoint, with other weights."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    weights = load_file(to / "model.safetensors")
    change(weights)
    save_file(weights, to / "model.safetensors")
    return to


def loaded(folder: Path) -> Model:
    """What the start compares with."""
    return load_model(ModelSource(folder, folder.name), CPU, torch.float32, kernels.PLAIN)


@pytest.mark.parametrize(
    ("head", "change", "said"),
    [
        ("ForSequenceClassification", zero, "vectors of 8 texts are all zero"),
        ("ForSequenceClassification", zero_head, "logits of 8 texts are all zero"),
        ("ForTokenClassification", zero_head, "logits of 8 texts are all zero"),
        ("ForMaskedLM", zero, "vectors of 8 texts are all zero"),
        ("ForMaskedLM", constant, "vectors of 8 texts are all alike"),
        ("ForMaskedLM", norm("embeddings"), "vectors of 8 texts are all alike"),
        (
            "ForMaskedLM",
            norm("encoder.layer.0.attention.output"),
            "vectors of 8 texts are all alike",
        ),
        ("ForMaskedLM", norm("encoder.layer.1.output"), "vectors of 8 texts are all alike"),
    ],
    ids=[
        *(
            "all zero",
            "a classifier's head zero",
            "a tagger's head zero",
            "zero under a sparse head",
        ),
        *("constant embeddings", "embeddings' norm", "an inner norm", "the last norm"),
    ],
)
def test_a_model_that_makes_the_same_of_every_text_is_seen(
    made: dict[str, Path],
    tmp_path: Path,
    head: str,
    change: Callable[[dict[str, torch.Tensor]], None],
    said: str,
) -> None:
    """The encoder, or the head behind it."""
    model = loaded(changed(made[head], change, tmp_path))

    with pytest.raises(
        NotTrustworthy, match=f"^untrained: the model's {said}; train it, or check its files$"
    ):
        check_tells_texts_apart(model, pick_evenly())


@pytest.mark.parametrize("head", HEADS)
def test_weights_drawn_at_random_tell_texts_apart(
    made: dict[str, Path], tmp_path: Path, head: str
) -> None:
    """As they are before a model is trained, its head's too: by this it is as good as any.

    A fresh BERT's matrices are drawn with a deviation of 0.02, and these with one of 0.5.
    """

    def quiet(weights: dict[str, torch.Tensor]) -> None:
        for each in weights.values():
            each *= 0.04 if each.dim() == 2 else 1

    check_tells_texts_apart(loaded(changed(made[head], quiet, tmp_path)), pick_evenly())


@pytest.mark.parametrize("head_layers", [0, 2])
def test_a_head_that_decides_alike_of_every_text_is_seen(tmp_path: Path, head_layers: int) -> None:
    """One whose last linear is zero; as it is drawn it decides."""
    folder = make_laya(tmp_path / "drawn", kind="bert", width=12, head_layers=head_layers)
    check_tells_texts_apart(loaded(folder), pick_evenly())

    def last(weights: dict[str, torch.Tensor]) -> None:
        weights["scorer.3.weight"].zero_()

    with pytest.raises(NotTrustworthy, match="the model's logits of 8 texts are all alike"):
        check_tells_texts_apart(loaded(changed(folder, last, tmp_path / "zero")), pick_evenly())


def test_texts_of_which_the_tokenizer_knows_no_word_judge_nothing(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """A good model makes the same of unknown words, as many of them: a bad one is not seen."""
    model = loaded(changed(made["ForMaskedLM"], norm("encoder.layer.1.output"), tmp_path))

    check_tells_texts_apart(model, ["\U0001f980", "\U0001f981 \U0001f982"])
    check_tells_texts_apart(model, [])
    with pytest.raises(NotTrustworthy):
        check_tells_texts_apart(model, ["crab", "lion"])


async def test_untrained_weights_end_the_start(made: dict[str, Path], tmp_path: Path) -> None:
    """With one line."""
    folder = changed(made["ForMaskedLM"], zero, tmp_path)
    settings = Settings(model=str(folder), device="cpu", threads=1)

    with pytest.raises(NotTrustworthy, match=r"^untrained: [^\n]*$"):
        await Replica.start(settings, "zero-1")
