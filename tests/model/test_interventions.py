"""Gates, patches and passes that begin in a layer, against transformers with hooks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from model import families, packing
from model.encoder import Encoder
from model.families.family import TensorNames
from model.loading.checkpoint import Model
from model.native import library
from model.native.stack import NativeStack
from model.packing import Sequence
from tests.model.loading.test_families import FAMILIES, MOST, inputs, saved, theirs

CLOSE = 1e-5
LAYERS, HEADS = 4, 3  # and more heads in some
LOOPED = ("deberta-v2", "qwen3", "gemma3_text")  # which the compiled operator does not compute
SOME = ("bert", "roberta", "distilbert", "mpnet", "gte", "modernbert", "electra", *LOOPED)
Edit = Callable[[Tensor], object]  # of one layer's mixed values, (tokens, width)


@contextmanager
def hooked(model: PreTrainedModel, family: str, edits: dict[int, Edit]) -> Iterator[None]:
    """transformers' model with some layers' mixed values changed before W^O."""

    def hook(edit: Edit) -> Callable[..., tuple[Tensor]]:
        def change(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            z = args[0].clone()
            edit(z[0])
            return (z,)

        return change

    output, handles = names(family)["layers.{i}.output"], []
    for layer, edit in edits.items():
        linear = model.get_submodule(output.format(i=layer))
        handles.append(linear.register_forward_pre_hook(hook(edit)))
    yield
    for handle in handles:
        handle.remove()


def names(family: str) -> TensorNames:
    """What transformers calls a family's parts."""
    return next(one.tensor_names[-1] for one in families.FAMILIES if one.name == family)


def part(head: int, ours: Model) -> slice:
    """A head's channels."""
    size = ours.config.head_dim
    return slice(head * size, (head + 1) * size)


@pytest.fixture(scope="module", params=SOME)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, PreTrainedModel, Model]:
    """A family's model as transformers runs it, and as we do."""
    family: str = request.param
    reference = theirs(family)
    return family, reference, saved(reference, Path(tmp_path_factory.mktemp(family)))


def ways(model: Model) -> list[Encoder]:
    """The loop, and the compiled operator where it is built and has such an encoder."""
    loop = model.encoder
    if loop.config.family in LOOPED:
        return [loop]
    try:
        operator = library.load_operator()
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")
    native = Encoder(loop.config, loop.embeddings, loop.layers, loop.distances)
    native.native = NativeStack(native, operator)
    return [loop, native]


@torch.inference_mode()
def test_a_head_is_scaled_as_a_hook_scales_it(both: tuple[str, PreTrainedModel, Model]) -> None:
    """Dropped and turned around, in the first, a middle and the last layer."""
    family, reference, ours = both
    sequence, given = inputs(family, "ids", MOST, reference)
    scales = {0: {0: 0.0}, 2: {1: -1.5, 2: 0.0}, LAYERS - 1: {2: 3.0}}

    def edit(heads: dict[int, float]) -> Edit:
        return lambda z: [z[:, part(head, ours)].mul_(by) for head, by in heads.items()]

    with hooked(reference, family, {layer: edit(heads) for layer, heads in scales.items()}):
        expected = reference(**given).last_hidden_state[0]

    for encoder in ways(ours):
        packed = encoder.pack([Sequence([5] * 7), replace(sequence, gates=scales)])
        assert (encoder(packed).last[packed.rows(1)] - expected).abs().max() <= CLOSE
    assert (reference(**given).last_hidden_state[0] - expected).abs().max() > 0.1


@torch.inference_mode()
def test_a_head_is_replaced_as_a_hook_replaces_it(
    both: tuple[str, PreTrainedModel, Model],
) -> None:
    """By what it is in another sequence of the same length, position by position."""
    family, reference, ours = both
    sequence, given = inputs(family, "ids", MOST, reference)
    other = {name: value.flip(-1) for name, value in given.items()}
    patched, seen = {1: 2, LAYERS - 1: 0}, {}

    def keep(layer: int) -> Edit:
        return lambda z: seen.update({layer: z[:, part(patched[layer], ours)].clone()})

    def put(layer: int) -> Edit:
        return lambda z: z[:, part(patched[layer], ours)].copy_(seen[layer])

    with hooked(reference, family, {layer: keep(layer) for layer in patched}):
        reference(**other)
    with hooked(reference, family, {layer: put(layer) for layer in patched}):
        expected = reference(**given).last_hidden_state[0]

    for encoder in ways(ours):
        source = encoder.pack([Sequence(other["input_ids"][0].tolist())])
        traces = encoder(source, traces=set(patched)).traces
        values = {
            layer: {head: traces[layer].z[source.rows(0), part(head, ours)]}
            for layer, head in patched.items()
        }
        packed = encoder.pack([replace(sequence, patches=values), Sequence([5] * 7)])
        assert (encoder(packed).last[packed.rows(0)] - expected).abs().max() <= CLOSE
    assert (reference(**given).last_hidden_state[0] - expected).abs().max() > 0.01


@torch.inference_mode()
def test_a_pass_that_begins_in_a_layer_has_the_bits_of_the_whole(
    both: tuple[str, PreTrainedModel, Model],
) -> None:
    """A head of each layer scaled, in copies of several lengths: as gated from the start."""
    family, reference, ours = both
    every = [inputs(family, "ids", length, reference)[0] for length in (1, 9, MOST)]
    layers = set(range(LAYERS))

    for encoder in ways(ours):
        packed = encoder.pack(every)
        whole = encoder(packed, hidden=layers, traces=layers)
        for layer in layers:
            copies, alone = [], []
            for place, sequence in enumerate(every):
                rows = packed.rows(place)
                states = whole.hidden[layer][rows], whole.traces[layer].z[rows]
                for head in (0, HEADS - 1):
                    gated = replace(sequence, gates={layer: {head: 0.25}, LAYERS - 1: {head: 0.25}})
                    copies.append(replace(gated, entry=packing.Entry(layer, *states)))
                    alone.append(encoder(encoder.pack([gated])).last[: len(sequence)])
            together = encoder.pack(copies)
            found = encoder(together, hidden=layers | {LAYERS}, traces=layers)
            assert found.hidden.keys() == {i for i in range(LAYERS + 1) if i > layer}
            assert found.traces.keys() == {i for i in range(LAYERS) if i > layer}
            for place, expected in enumerate(alone):
                assert torch.equal(found.last[together.rows(place)], expected)


def test_a_batch_begins_in_one_place() -> None:
    """A mixture is a fault of ours, and is said."""
    state = torch.zeros(1, 5)
    mixed = [Sequence([7], entry=packing.Entry(layer, state, state)) for layer in (0, 1)]

    for batch in (mixed, [mixed[0], Sequence([7])]):
        with pytest.raises(ValueError, match="a batch begins in one place"):
            packing.pack_sequences(batch, torch.device("cpu"))


def test_the_families_named_are_there() -> None:
    """None has got another name."""
    assert set(SOME) <= FAMILIES.keys()
