"""service/commands/heads.py: what the encoding is without a head."""

import pytest
import torch

from model.packing import Sequence
from service.commands.heads import Solo
from service.engine.weights import BUNDLED

DOG = "A dog ate the food because it was hungry."
# transformers 5.23.0, BertModel, eager, float32, the head's columns of W^O set to 0, mean-pooled
MOVED = {(5, 11): 0.1058, (5, 10): 0.0505, (5, 7): 0.0431, (1, 11): 1.54e-4}


@pytest.fixture(scope="module")
def solo() -> Solo:
    """The bundled model."""
    return Solo(BUNDLED)


def test_the_encoding_moves_as_far_as_in_transformers(solo: Solo) -> None:
    """The head that leads 'it' to 'dog' moves it most, a sink of layer 1 least."""
    found = solo.ablate(DOG)

    assert found.shape == (6, 12)
    assert divmod(int(found.argmax()), 12) == (5, 11)
    assert divmod(int(found.argmin()), 12) == (1, 11)
    for (layer, head), expected in MOVED.items():
        assert found[layer, head].item() == pytest.approx(expected, rel=0.01)


@torch.inference_mode()
def test_each_head_is_removed_by_itself(solo: Solo) -> None:
    """Its cell holds what a pass without it, and it alone, gives."""
    model = solo.model
    (read,) = model.tokenizer([(DOG,)], model.max_tokens)
    without = Sequence(read.token_ids, gates={2: {7: 0.0}})

    def pooled(sequence: Sequence) -> torch.Tensor:
        packed = model.encoder.pack([sequence])
        rows = [packed.rows(0)]
        return model.encoder.pool(model.encoder(packed).last, rows, model.pooling)[0].double()

    alike = torch.cosine_similarity(pooled(Sequence(read.token_ids)), pooled(without), dim=0)

    assert solo.ablate(DOG)[2, 7].item() == pytest.approx(1 - alike.item(), abs=1e-7)
