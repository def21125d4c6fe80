"""model/encoder.py"""

import torch
from torch import Tensor

from model.encoder import Embeddings
from model.loading.checkpoint import Model
from model.packing import Sequence, pack_sequences

CPU = torch.device("cpu")
VOCABULARY, POSITIONS, TYPES, WIDTH = 13, 7, 2, 5
EPS = 1e-12


def numbers(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def embeddings() -> Embeddings:
    """Tables and a norm of made-up numbers."""
    return Embeddings(
        numbers(VOCABULARY, WIDTH, seed=0),
        position=numbers(POSITIONS, WIDTH, seed=1),
        offset=0,
        types=numbers(TYPES, WIDTH, seed=2),
        norm=(numbers(WIDTH, seed=3), numbers(WIDTH, seed=4)),
        eps=EPS,
        project=None,
    )


def test_a_token_enters_as_the_norm_of_word_position_and_type() -> None:
    """LayerNorm(word + segment + position), written out in double precision."""
    table, packed = embeddings(), pack_sequences([Sequence([3, 11, 3], [0, 0, 1])], CPU)

    entered = table(packed)[packed.rows(0)]

    words, places, types = table.word[[3, 11, 3]], table.position[:3], table.types[[0, 0, 1]]
    total = (words.double() + places + types).double()
    centred = total - total.mean(-1, keepdim=True)
    weight, bias = table.norm
    expected = centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * weight + bias
    torch.testing.assert_close(entered.double(), expected, rtol=0, atol=1e-5)


def test_a_models_own_vectors_have_the_bits_of_their_tokens(model: Model) -> None:
    """Embeddings in equals token ids in, to the last layer, when they are the model's own."""
    ids = [101, 2035, 2003, 2092, 102]
    vectors = model.encoder.embeddings.word[ids]
    packed = pack_sequences(
        [Sequence(ids), Sequence(embeddings=vectors), Sequence([101, 102])], CPU
    )

    last = model.encoder(packed).last

    assert torch.equal(last[packed.rows(1)], last[packed.rows(0)])


def test_a_vector_that_is_not_the_models_own_counts() -> None:
    """What is given is what enters, not some token's word."""
    table = embeddings()
    given = table.word[[4, 4, 4]] + torch.eye(3, WIDTH)
    packed = pack_sequences([Sequence([4, 4, 4]), Sequence(embeddings=given)], CPU)

    entered = table(packed)

    assert not entered[packed.rows(0)].isclose(entered[packed.rows(1)]).all(-1).any()


def test_neither_the_tables_nor_the_given_vectors_change() -> None:
    """The sum is made in place, but not in anyone else's numbers."""
    table, given = embeddings(), numbers(3, WIDTH, seed=5)

    table(pack_sequences([Sequence([1, 2]), Sequence(embeddings=given)], CPU))

    assert torch.equal(given, numbers(3, WIDTH, seed=5))
    assert torch.equal(table.word, embeddings().word)


def test_half_precision_vectors_enter_a_float32_model() -> None:
    """Vectors take the model's own number format."""
    table = embeddings()
    packed = pack_sequences([Sequence(embeddings=numbers(3, WIDTH, seed=5).half())], CPU)

    assert table(packed).dtype == torch.float32
