"""A WeightedLayerPooling computes what sentence-transformers computes of all layers' vectors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from model.errors import CheckpointError
from model.loading.checkpoint import Model
from model.packing import Sequence
from service.engine.loading import accelerate
from tests.model.loading.pipeline.conftest import TEXTS, WIDTH, change, config, load, vectors

LAYERS = 2  # of the small model
HOME, SETTINGS = "1_WeightedLayerPooling", "sentence_bert_config.json"

Save = Callable[..., Path]


@pytest.fixture
def save(bert: Path, tmp_path: Path) -> Save:
    """Have the library save the small model with weights over its layers."""

    def save(*parts: nn.Module, first: int = 1, said: bool = True, to: str = "saved") -> Path:
        weighted = WeightedLayerPooling(WIDTH, num_hidden_layers=LAYERS, layer_start=first)
        with torch.no_grad():
            weighted.layer_weights.copy_(torch.tensor([0.7, -0.2, 1.9])[first:])
        transformer = Transformer(str(bert), config_kwargs={"output_hidden_states": said})
        peer = SentenceTransformer(modules=[transformer, weighted, *parts], device="cpu")
        peer.save_pretrained(str(tmp_path / to), create_model_card=False)
        return tmp_path / to

    return save


def expected(folder: Path) -> Tensor:
    """What the library makes of the texts."""
    return SentenceTransformer(str(folder), device="cpu").encode(
        list(TEXTS), convert_to_tensor=True
    )


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_weighted_mean_of_layers_is_sentence_transformers(save: Save, first: int) -> None:
    """From the embeddings on, or from a layer; with what stands behind the Pooling."""
    folder = save(Pooling(WIDTH, "mean"), Dense(WIDTH, 8), Normalize(), first=first)

    torch.testing.assert_close(vectors(load(folder), *TEXTS), expected(folder), rtol=0, atol=1e-5)


def test_token_vectors_are_blended_too(save: Save) -> None:
    """As the library hands them on; the hidden states asked for stay the encoder's own."""
    folder = save(Pooling(WIDTH))
    peer, model = SentenceTransformer(str(folder), device="cpu"), load(folder)

    theirs = peer.encode(TEXTS[0], output_value="token_embeddings")
    encoded = run(model, hidden=frozenset({LAYERS}))

    torch.testing.assert_close(encoded.last[encoded.packed.rows(0)], theirs, rtol=0, atol=1e-5)
    assert set(encoded.hidden) == {LAYERS}
    assert not torch.equal(encoded.hidden[LAYERS], encoded.last)


@torch.inference_mode()
def run(model: Model, hidden: frozenset[int] = frozenset()) -> Any:
    """A pass of the texts."""
    cut = model.tokenizer([(text,) for text in TEXTS], model.max_tokens, "right")
    packed = model.encoder.pack([Sequence(tokens.token_ids) for tokens in cut])
    return model.encoder(packed, hidden=hidden)


def test_the_compiled_pass_blends_the_same_bits(save: Save) -> None:
    """The operator hands out the states that the loop does."""
    model = load(save(Pooling(WIDTH)))
    plain = run(model).last
    accelerate(model)

    assert torch.equal(run(model).last, plain)


def test_without_hidden_states_the_module_does_nothing(save: Save) -> None:
    """As in the library, which is then handed no layers to weigh."""
    folder = save(Pooling(WIDTH), said=False)
    model = load(folder)

    torch.testing.assert_close(vectors(model, *TEXTS), expected(folder), rtol=0, atol=1e-5)
    assert model.encoder.blend is None


def test_arguments_of_the_transformer_switch_it_and_are_in_the_digest(save: Save) -> None:
    """`config_args` hold over config.json."""
    folder = save(Pooling(WIDTH))
    before = load(folder).digest
    change(folder / SETTINGS, config_args={"output_hidden_states": False})
    model = load(folder)

    torch.testing.assert_close(vectors(model, *TEXTS), expected(folder), rtol=0, atol=1e-5)
    assert model.digest != before


def test_the_weights_are_in_the_digest(save: Save) -> None:
    """Other vectors are other weights."""
    folder = save(Pooling(WIDTH))
    before, path = load(folder).digest, folder / HOME / "model.safetensors"
    tensors = load_file(path)
    save_file({"layer_weights": tensors["layer_weights"] + 1}, path)

    assert load(folder).digest != before


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"layer_start": 3}, "layer_start 3, of an encoder of 2 layers"),
        ({"layer_start": -1}, "layer_start -1"),
        ({"layer_start": True}, "layer_start True"),
        ({"temperature": 1}, "unknown key 'temperature'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(
    save: Save, values: dict[str, Any], said: str
) -> None:
    """The library would count from the end, or fail at the first text."""
    folder = save(Pooling(WIDTH))
    change(folder / HOME / "config.json", **values)

    with pytest.raises(CheckpointError, match=f"{HOME}: not supported: {said}"):
        load(folder)


@pytest.mark.parametrize(
    ("factors", "said"),
    [([1.0, 1, 1], "layer_weights"), ([1.0, -1], "layer_weights that sum to 0")],
    ids=["one too many", "of sum 0"],
)
def test_weights_that_make_no_mean_are_refused(save: Save, factors: list[float], said: str) -> None:
    """One for each layer, and a sum to divide by."""
    folder = save(Pooling(WIDTH))
    save_file({"layer_weights": torch.tensor(factors)}, folder / HOME / "model.safetensors")

    with pytest.raises(CheckpointError, match=f"{HOME}/model.safetensors.*{said}"):
        load(folder)


def test_elsewhere_than_before_a_pooling_it_is_refused(save: Save) -> None:
    """There it weighs nothing that reaches the vector."""
    folder = save(Pooling(WIDTH))
    path = folder / "modules.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([rows[0], rows[2], rows[1]]))

    with pytest.raises(CheckpointError, match="json: not supported: WeightedLayerPooling"):
        load(folder)


def test_a_head_behind_it_is_refused(save: Save) -> None:
    """It was trained on the last layer's vectors."""
    folder = save(Pooling(WIDTH))
    tokens = json.loads((folder / "config.json").read_text())["vocab_size"]
    sizes = config(vocab_size=tokens, num_labels=1, output_hidden_states=True)
    BertForSequenceClassification(sizes).save_pretrained(folder)

    with pytest.raises(CheckpointError, match="not supported: of a model with a task head"):
        load(folder)
