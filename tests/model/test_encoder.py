"""model/encoder.py: the numbers of transformers, the same bits in any batch, no work unasked."""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from model import kernels
from model.encoder import Encoded
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.packing import Sequence, pack_sequences

CPU = torch.device("cpu")
LAYERS = frozenset(range(6))
STATES = frozenset(range(7))
CLOSE = 1e-5  # largest difference from transformers, absolute
CLOSE_INSIDE = 2e-5  # the same between layers, where numbers are up to twice as large
BATCH_TOKENS = 1500

Ids = list[list[int]]
Threads = Callable[[int], None]
Reference = Callable[[list[int]], tuple[list[Tensor], Tensor]]


def encode(model: Model, batch: Ids, **wanted: frozenset[int]) -> Encoded:
    """One forward pass over a batch of token ids."""
    return model.encoder(pack_sequences([Sequence(ids) for ids in batch], CPU), **wanted)


def shuffled(sequences: Ids, seed: int, tokens: int = BATCH_TOKENS) -> Iterator[Ids]:
    """Every sequence once, in random batches of random sizes."""
    chance, waiting = random.Random(seed), list(sequences)
    chance.shuffle(waiting)
    while waiting:
        batch, budget = [waiting.pop()], chance.randrange(tokens)
        while waiting and sum(map(len, batch)) + len(waiting[-1]) <= budget:
            batch.append(waiting.pop())
        yield batch


def agrees(encoded: Encoded, index: int, expected: list[Tensor]) -> bool:
    """Whether one sequence's hidden states and last layer are close enough to those expected."""
    rows = encoded.packed.rows(index)
    inside = torch.stack([encoded.hidden[i][rows] for i in sorted(encoded.hidden)])
    last = encoded.last[rows]
    return (last - expected[-1]).abs().max().item() <= CLOSE and (
        inside - torch.stack(expected)
    ).abs().max().item() <= CLOSE_INSIDE


def test_there_are_enough_texts_of_every_length(sequences: Ids) -> None:
    """Of at least fifty real sentences, from short to the longest, each test takes some."""
    lengths = sorted(map(len, sequences))

    assert len(lengths) >= 50
    assert (lengths[0], lengths[-1]) == (1, 512)
    assert all(any(low < length <= 2 * low for length in lengths) for low in (4, 8, 64, 128, 256))


def test_alone_every_hidden_state_is_that_of_transformers(
    model: Model, sequences: Ids, reference: Reference
) -> None:
    """From what enters the first layer to what leaves the last, every number of every token."""
    for ids in sequences[::3]:
        assert agrees(encode(model, [ids], hidden=STATES), 0, reference(ids)[0])


def test_in_any_batch_every_hidden_state_is_that_of_transformers(
    model: Model, sequences: Ids, reference: Reference
) -> None:
    """Whatever lies next to a sequence, its numbers are those of transformers alone."""
    for batch in shuffled(sequences[::2], seed=2):
        encoded = encode(model, batch, hidden=STATES)
        for i, ids in enumerate(batch):
            assert agrees(encoded, i, reference(ids)[0])


def test_the_plain_path_is_that_of_transformers_too(
    plain: Model, sequences: Ids, reference: Reference
) -> None:
    """Without a single private operator, in one batch after another."""
    for batch in shuffled(sequences[::3], seed=5):
        encoded = encode(plain, batch, hidden=STATES)
        for i, ids in enumerate(batch):
            assert agrees(encoded, i, reference(ids)[0])


def test_hidden_states_are_counted_from_the_embeddings(model: Model, sequences: Ids) -> None:
    """0 enters the first layer, 6 has left the last; only those asked for are kept."""
    packed = pack_sequences([Sequence(sequences[4])], CPU)

    encoded = model.encoder(packed, hidden=frozenset({0, 3, 6}))

    assert sorted(encoded.hidden) == [0, 3, 6]
    assert torch.equal(encoded.hidden[0], model.encoder.embeddings(packed))
    assert torch.equal(encoded.hidden[6], encoded.last)


@pytest.mark.parametrize(
    ("way", "cores"),
    [
        ("model", 1),
        ("model", 2),
        pytest.param("plain", 1, marks=pytest.mark.prove),
        ("plain", 3),
    ],
)
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(
    request: pytest.FixtureRequest, sequences: Ids, threads: Threads, way: str, cores: int
) -> None:
    """What else is in a batch moves no bit, and neither does a second core."""
    loaded = request.getfixturevalue(way)
    some = sequences[:: 3 if (way, cores) == ("model", 1) else 5]

    assert moved(loaded, some, shuffled(some, seed=7), threads, cores) == []


@pytest.mark.prove
@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("seed", range(11))
def test_a_thousand_answers_have_the_same_bits_alone_and_in_any_batch(
    model: Model, threads: Threads, seed: int, cores: int
) -> None:
    """Each length from 1 to 61 and some up to 512, in batches of up to 10,000 tokens."""
    chance = random.Random(seed)
    lengths = [*range(1, 62), *(chance.randrange(62, 512) for _ in range(30)), 512]
    many = [[chance.randrange(1000, 30000) for _ in range(length)] for length in lengths]

    assert moved(model, many, shuffled(many, seed, 10_000), threads, cores) == []


def test_a_kernel_that_heeds_the_batch_is_caught(
    folder: object, sequences: Ids, threads: Threads
) -> None:
    """The comparison of bits can fail: here the company moves the last digits."""

    def swayed(
        q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return kernels.attend_plain(q, k, v, scale * (1 + 1e-6 * len(q)), bias)

    way = kernels.Kernels("swayed", kernels.PlainLinear, swayed)
    faulty = checkpoint.load_checkpoint(folder, CPU, torch.float32, way)
    short = [ids for ids in sequences if len(ids) < 30][::3]

    assert len(moved(faulty, short, shuffled(short, seed=7), threads, 1)) > 1


def moved(
    model: Model, sequences: Ids, batches: Iterator[Ids], threads: Threads, cores: int
) -> list[int]:
    """The lengths of sequences whose bits differ in batches on some cores and alone on one."""
    threads(1)
    alone = {tuple(ids): encode(model, [ids]).last[: len(ids)].clone() for ids in sequences}
    threads(cores)
    found = []
    for batch in batches:
        encoded = encode(model, batch)
        for i, ids in enumerate(batch):
            if not torch.equal(encoded.last[encoded.packed.rows(i)], alone[tuple(ids)]):
                found.append(len(ids))
    return found


def test_asking_for_everything_leaves_the_encodings_at_the_same_bits(
    model: Model, sequences: Ids
) -> None:
    """Traces, hidden states, and even the maps made from them, change no answer."""
    batch = sequences[:13]
    expected = encode(model, batch).last

    encoded = encode(model, batch, hidden=STATES, traces=LAYERS)
    for layer in LAYERS:
        maps.full_maps(MapReader(encoded.traces[layer], encoded.packed.rows(3), range(12)))

    assert torch.equal(encoded.last, expected)


def test_not_asking_runs_no_operator_more_than_the_layers_do(model: Model, sequences: Ids) -> None:
    """A pass that shows nothing is the embeddings and the layers, operator for operator."""
    packed = pack_sequences([Sequence(ids) for ids in sequences[:5]], CPU)

    def bare() -> None:
        x = model.encoder.embeddings(packed)
        for layer in model.encoder.layers:
            x, _ = layer(x, packed, model.encoder.biases(packed), [])

    assert operators(lambda: model.encoder(packed)) == operators(bare)


def test_asking_runs_no_operator_in_the_pass_and_some_after_it(
    model: Model, sequences: Ids
) -> None:
    """A map is paid for by who wants it: one product of queries and keys for each layer."""
    packed = pack_sequences([Sequence(ids) for ids in sequences[:5]], CPU)
    encoder = model.encoder

    def ask() -> None:
        encoded = encoder(packed, hidden=STATES, traces=LAYERS)
        for layer in LAYERS:
            maps.full_maps(MapReader(encoded.traces[layer], packed.rows(0), [3, 11]))

    without = operators(lambda: encoder(packed))
    traced = operators(lambda: encoder(packed, hidden=STATES, traces=LAYERS))
    asked = operators(ask)
    assert traced == without
    assert (asked - without)["aten::baddbmm"] == 6


@pytest.mark.skipif(kernels.ONEDNN is None, reason="needs a build of torch with oneDNN")
def test_a_pass_is_four_linears_one_attention_and_two_norms_a_layer(
    model: Model, sequences: Ids
) -> None:
    """Everything large is fused; no matrix of queries by keys, no softmax, no GELU by itself."""
    packed = pack_sequences([Sequence(sequences[4])], CPU)

    ran = operators(lambda: model.encoder(packed))

    assert ran["mkldnn::_linear_pointwise"] == 4 * 6
    assert ran["aten::_scaled_dot_product_flash_attention_for_cpu"] == 6 * (not kernels.COMPILED)
    assert ran["aten::native_layer_norm"] == 1 + 2 * 6
    unfused = {"aten::bmm", "aten::matmul", "aten::softmax", "aten::gelu", "aten::linear"}
    assert not unfused & ran.keys()


def operators(call: Callable[[], object]) -> Counter[str]:
    """How often each operator of torch ran in a call."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return Counter(event.name for event in seen.events())
