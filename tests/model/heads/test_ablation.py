"""model/heads/ablation.py: what the encoding is without a head."""

import pytest
import torch

from model.heads.ablation import ablate
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.pooling import pool

DOG = "A dog ate the food because it was hungry."
# transformers 5.23.0, BertModel, eager, float32, the head's columns of W^O set to 0, mean-pooled
MOVED = {(5, 11): 0.1058, (5, 10): 0.0505, (5, 7): 0.0431, (1, 11): 1.54e-4}


@torch.inference_mode()
def moved(model: Model, text: str) -> torch.Tensor:
    """How far the encoding of a text moves without each head, (layers, heads)."""
    (read,) = model.tokenizer([(text,)], model.max_tokens)
    return ablate(model.encoder, read.token_ids, model.pooling)


def test_the_encoding_moves_as_far_as_in_transformers(model: Model) -> None:
    """The head that leads 'it' to 'dog' moves it most, a sink of layer 1 least."""
    found = moved(model, DOG)

    assert found.shape == (6, 12)
    assert divmod(int(found.argmax()), 12) == (5, 11)
    assert divmod(int(found.argmin()), 12) == (1, 11)
    for (layer, head), expected in MOVED.items():
        assert found[layer, head].item() == pytest.approx(expected, rel=0.01)


@torch.inference_mode()
def test_each_head_is_removed_by_itself(model: Model) -> None:
    """Its cell holds what a pass without it, and it alone, gives."""
    (read,) = model.tokenizer([(DOG,)], model.max_tokens)
    without = Sequence(read.token_ids, gates={2: {7: 0.0}})

    def pooled(sequence: Sequence) -> torch.Tensor:
        encoded = model.encoder(model.encoder.pack([sequence]))
        return pool(encoded.last[encoded.packed.rows(0)], model.pooling).double()

    alike = torch.cosine_similarity(pooled(Sequence(read.token_ids)), pooled(without), dim=0)

    assert moved(model, DOG)[2, 7].item() == pytest.approx(1 - alike.item(), abs=1e-7)
