"""LoRA adapters against transformers' model with W + scale B A for W; and their refusals."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from model import kernels
from model.adapters import Adapter, mix_adapters
from model.encoder import Encoder
from model.errors import CheckpointError
from model.lessons import explain_layer, step_weights
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.packing import Sequence
from tests.model.loading.test_families import BATCH, CPU, FAMILIES, MOST, inputs, saved, theirs

RANK, ALPHA = 3, 7
BASE, LEFT, RIGHT = None, "left", "right"

Adapted = tuple[PreTrainedModel, Model, dict[str | None, PreTrainedModel]]


def linears(model: PreTrainedModel, family: str) -> Iterator[tuple[str, nn.Linear]]:
    """The linears of a model's layers that an adapter may change."""
    fixed = ("project", "pooler", "embedding_hidden_mapping_in")
    by_distance = ("query_proj", "key_proj") if family == "deberta-v2" else ()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not any(
            part in name for part in (*fixed, *by_distance)
        ):
            yield name, module


def adapter(
    model: PreTrainedModel,
    folder: Path,
    family: str,
    seed: int,
    stored: Callable[[str], str] = str,
    **config: Any,
) -> PreTrainedModel:
    """Write an adapter of every second linear and more, and return the model it makes.

    Args:
        stored: a linear's name in the file, where the model has another.
    """
    random, merged = torch.Generator().manual_seed(seed), copy.deepcopy(model)
    tensors: dict[str, torch.Tensor] = {}
    scale = ALPHA / (math.sqrt(RANK) if config.get("use_rslora") else RANK)
    for number, (name, module) in enumerate(linears(merged, family)):
        if number % 3 == seed % 3:
            continue
        outputs, width = module.weight.shape
        a, b = (torch.randn(s, generator=random) * 0.1 for s in ((RANK, width), (outputs, RANK)))
        own = f"base_model.model.{stored(name)}"
        tensors |= {f"{own}.lora_{k}.weight": t for k, t in (("A", a), ("B", b))}
        with torch.no_grad():
            module.weight += scale * (b @ a)  # peft.tuners.lora.Linear.get_delta_weight
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return merged


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Adapted]:
    """A family's model as transformers has it, as we load it with two adapters, and both merged."""
    cache: dict[str, Adapted] = {}

    def make(family: str) -> Adapted:
        if family not in cache:
            folder, reference = tmp_path_factory.mktemp(family), theirs(family)
            model = saved(reference, folder)
            own = {LEFT: folder / LEFT, RIGHT: folder / RIGHT}
            merged: dict[str | None, PreTrainedModel] = {
                BASE: reference,
                LEFT: adapter(reference, own[LEFT], family, 1),
                RIGHT: adapter(reference, own[RIGHT], family, 2, use_rslora=True),
            }
            cache[family] = reference, checkpoint.with_adapters(model, folder, own), merged
        return cache[family]

    return make


def run(model: Model, sequences: list[Sequence], chosen: list[str | None]) -> list[torch.Tensor]:
    """The last hidden states of a batch, as lanes run it."""
    with torch.inference_mode():
        packed = model.encoder.pack(sequences)
        own = [None if name is None else model.adapters[name] for name in chosen]
        encoder: Encoder = (
            mix_adapters(model.encoder, packed, own) if any(chosen) else model.encoder
        )
        last = encoder(packed).last
        return [last[packed.rows(i)] for i in range(len(sequences))]


@pytest.mark.parametrize(
    "family",
    [  # each second one; `make prove` tries the others
        pytest.param(family, marks=pytest.mark.prove if place % 2 else ())
        for place, family in enumerate(FAMILIES)
    ],
)
def test_an_adapter_computes_what_merged_weights_compute(
    adapted: Callable[[str], Adapted], family: str
) -> None:
    """Alone, and in a batch with another adapter and with none; each differs from the others."""
    reference, ours, merged = adapted(family)
    sequences, given = zip(*(inputs(family, "ids", n, reference) for n in BATCH[::2]), strict=True)
    chosen = [(LEFT, BASE, RIGHT)[i % 3] for i in range(len(sequences))]

    together = run(ours, list(sequences), chosen)

    for i, name in enumerate(chosen):
        with torch.inference_mode():
            states = {key: one(**given[i]).last_hidden_state[0] for key, one in merged.items()}
        own = states.pop(name)
        for found in (together[i], *run(ours, [sequences[i]], [name])):
            assert float((found - own).abs().max()) <= 1e-5
        assert all(float((together[i] - other).abs().max()) > 1e-3 for other in states.values())


@pytest.mark.parametrize(
    "family",
    [  # each that the test above leaves to `make prove`, and the first
        pytest.param(family, marks=() if place % 2 or not place else pytest.mark.prove)
        for place, family in enumerate(FAMILIES)
    ],
)
def test_an_adapters_neighbours_move_no_bit(adapted: Callable[[str], Adapted], family: str) -> None:
    """At every place of random batches, whichever adapters the other sequences have."""
    reference, ours, _ = adapted(family)
    sequences = [inputs(family, "ids", n, reference)[0] for n in (1, 9, 9, MOST)]
    names = (BASE, LEFT, RIGHT)
    alone = {
        (i, name): run(ours, [one], [name])[0] for i, one in enumerate(sequences) for name in names
    }

    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(sequences), generator=random).tolist()
        chosen = [names[i] for i in torch.randint(0, 3, (len(order),), generator=random)]
        together = run(ours, [sequences[i] for i in order], chosen)
        for i, name, found in zip(order, chosen, together, strict=True):
            assert torch.equal(found, alone[i, name]), (i, name)


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet", "modernbert", "gemma3_text"])
def test_an_adapters_own_encoder_has_the_merged_weights(
    adapted: Callable[[str], Adapted], family: str
) -> None:
    """It computes a batch of that adapter alone, and shows W + B A where a lesson asks for it."""
    reference, ours, _ = adapted(family)
    view, sequence = ours.adapters[LEFT].encoder, inputs(family, "ids", MOST, reference)[0]
    with torch.inference_mode():
        found = view(view.pack([sequence]), hidden={0, 1})
        steps = explain_layer(view, 0, found.hidden[0][:MOST])

        assert torch.equal(found.last[:MOST], run(ours, [sequence], [LEFT])[0])
        assert float((steps["output"] - found.hidden[1][:MOST]).abs().max()) <= 1e-4
        assert not torch.equal(
            step_weights(view, 0)["v.weight"], step_weights(ours.encoder, 0)["v.weight"]
        )


def test_triangles_are_of_the_adapters_weights(adapted: Callable[[str], Adapted]) -> None:
    """And not those that the model's own attention had made before."""
    _, ours, _ = adapted("bert")
    before = [layer.attention.output_triangles for layer in ours.encoder.layers]
    view = Adapter.build(ours.encoder, "", ours.adapters[LEFT].terms).encoder

    for i, layer in enumerate(view.layers):
        changed = (i, "output") in ours.adapters[LEFT].terms
        assert torch.equal(layer.attention.output_triangles, before[i]) is not changed


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with BERT, and in it one with an adapter."""
    reference, folder = theirs("bert"), tmp_path_factory.mktemp("stored")
    saved(reference, folder)
    adapter(reference, folder / LEFT, "bert", 1)
    return folder


@pytest.fixture
def written(stored: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(stored, tmp_path / "written"))


def refusal(folder: Path) -> str:
    """What is said of the adapter of a folder."""
    model = checkpoint.load_checkpoint(folder, CPU, torch.float32, kernels.PLAIN)
    with pytest.raises(CheckpointError) as refused:
        checkpoint.with_adapters(model, folder, {LEFT: folder / LEFT})
    assert str(refused.value).startswith(f"adapter {folder / LEFT}: ")
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("use_dora", True, "not supported: use_dora: true"),
        ("bias", "all", 'not supported: bias: "all"'),
        ("modules_to_save", ["classifier"], 'not supported: modules_to_save: ["classifier"]'),
        ("rank_pattern", {"query": 4}, 'not supported: rank_pattern: {"query": 4}'),
        ("init_lora_weights", "pissa", 'not supported: init_lora_weights: "pissa"'),
        ("invented", 1, "not supported: invented: 1"),
        ("peft_type", "IA3", "peft_type 'IA3' is not supported"),
        ("r", 0, "r 0 is not a whole number"),
        ("r", 5, "is (3, 48), not (5, 48)"),
        ("lora_alpha", None, "lora_alpha None is not a number"),
        ("lora_alpha", math.nan, "lora_alpha nan is not a number"),
    ],
)
def test_what_a_config_asks_and_is_not_computed_is_refused(
    written: Path, key: str, value: object, said: str
) -> None:
    """By its name, and its value."""
    config = written / LEFT / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: value}))

    assert said in refusal(written)


def test_a_config_whose_choices_are_neutral_is_taken(written: Path) -> None:
    """As PEFT writes every key, asked for or not."""
    config = written / LEFT / "adapter_config.json"
    neutral = {"use_dora": False, "rank_pattern": {}, "modules_to_save": None, "eva_config": None}
    known = {"target_modules": ["query"], "lora_dropout": 0.1, "peft_version": "0.21.2"}
    config.write_text(json.dumps(json.loads(config.read_text()) | neutral | known))
    model = checkpoint.load_checkpoint(written, CPU, torch.float32, kernels.PLAIN)

    assert checkpoint.with_adapters(model, written, {LEFT: written / LEFT}).adapters.keys() == {
        LEFT
    }


OF_THAT_LIBRARY = "sentence_transformers.sentence_transformer.modules"


@pytest.mark.parametrize(
    ("pooling", "said", "other"),
    [
        ({}, {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}, ""),
        ({"pooling_mode": "cls"}, {}, "pooling"),
        ({}, {"prompts": {"query": "q: "}, "default_prompt_name": "query"}, "prompts, prompt"),
        ({"pooling_mode": "median"}, {}, "pooling not supported: "),
    ],
    ids=["as the model's", "another pooling", "a prompt", "a pooling that is unknown"],
)
def test_modules_that_an_adapter_brings_are_the_models_or_refused(
    written: Path, pooling: dict[str, Any], said: dict[str, Any], other: str
) -> None:
    """sentence-transformers saves them with it, and would read them in place of the base's."""
    own = written / LEFT
    kinds = {"": "transformer.Transformer", "1_Pooling": "pooling.Pooling"}
    modules = [{"path": path, "type": f"{OF_THAT_LIBRARY}.{kinds[path]}"} for path in kinds]
    (own / "1_Pooling").mkdir()
    for name, value in {
        "modules.json": modules,
        "1_Pooling/config.json": {"embedding_dimension": 48, "pooling_mode": "mean"} | pooling,
        "config_sentence_transformers.json": said,
    }.items():
        (own / name).write_text(json.dumps(value))

    if not other:
        model = checkpoint.load_checkpoint(written, CPU, torch.float32, kernels.PLAIN)
        assert checkpoint.with_adapters(model, written, {LEFT: own}).adapters
    elif other.startswith("pooling not"):
        assert other in refusal(written)
    else:
        assert f"its modules.json and the model's differ in {other};" in refusal(written)


@pytest.mark.parametrize("name", ["embeddings.word_embeddings", "encoder.layer.9.output.dense"])
def test_a_tensor_of_no_layers_linear_is_refused(written: Path, name: str) -> None:
    """By its name."""
    path = written / LEFT / "adapter_model.safetensors"
    more = {f"base_model.model.{name}.lora_A.weight": torch.ones(RANK, 48)}
    save_file(load_file(path) | more, path)

    assert f"unexpected {name}.lora_A.weight" in refusal(written)


def test_numbers_that_are_not_finite_are_refused(written: Path) -> None:
    """Before any request could meet them."""
    path = written / LEFT / "adapter_model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values()))[0, 0] = math.nan
    save_file(tensors, path)

    assert "holds NaN or infinity" in refusal(written)


def test_the_pooler_counts_for_nothing_without_a_task_head(written: Path) -> None:
    """No encoding is made with it."""
    path = written / LEFT / "adapter_model.safetensors"
    more = {"base_model.model.pooler.dense.lora_A.weight": torch.ones(RANK, 48)}
    save_file(load_file(path) | more, path)
    model = checkpoint.load_checkpoint(written, CPU, torch.float32, kernels.PLAIN)

    assert checkpoint.with_adapters(model, written, {LEFT: written / LEFT}).adapters


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused(written: Path, file: str) -> None:
    """By the file's name."""
    (written / LEFT / file).unlink()

    assert file in refusal(written)
