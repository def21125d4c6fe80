"""Adapters of tasks in a checkpoint's own files: jina-embeddings-v3 and v5.

v3 is held to transformers' JinaEmbeddingsV3 with each task's W + B A alpha / rank in place of W, of
every linear and both tables, as modeling_lora.py of jinaai/xlm-roberta-flash-implementation writes
it down (LoRAParametrization.lora_forward); v5 to transformers' EuroBERT and Qwen3 likewise.
"""

import copy
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from model import families
from model.adapters import mix_adapters
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.packing import Sequence
from tests.model import loads
from tests.model.loading.test_adapters import adapter
from tests.model.small_tokenizer import save_small_tokenizer

RANK, ALPHA, VOCABULARY, TYPES, MOST = 5, 7, 97, 3, 41
# made-up names beside the hub's own, and one task of no instruction
QUERY, PASSAGE, SEPARATION = "retrieval.query", "retrieval.passage", "separation"
TASKS = [QUERY, PASSAGE, SEPARATION]
INSTRUCTIONS = {QUERY: "the dog ", PASSAGE: "a cat ", SEPARATION: ""}
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 42,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 61,
    "max_position_embeddings": MOST,
    "type_vocab_size": TYPES,
    "layer_norm_eps": 3e-6,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
CODE = "jinaai/xlm-roberta-flash-implementation--"
CONFIG = {  # what config.json of the hub has beside its sizes
    "architectures": ["XLMRobertaModel"],
    "auto_map": {
        "AutoConfig": f"{CODE}configuration_xlm_roberta.XLMRobertaFlashConfig",
        "AutoModel": f"{CODE}modeling_lora.XLMRobertaLoRA",
    },
    "emb_pooler": "mean",
    "load_trained_adapters": True,
    "lora_adaptations": TASKS,
    "lora_alpha": ALPHA,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": RANK,
    "matryoshka_dimensions": [8, 16],
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "task_instructions": INSTRUCTIONS,
    "truncate_dim": None,
    "use_flash_attn": True,
    "use_reentrant": False,
}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Norm", "type": "sentence_transformers.models.Normalize"},
]
# the hub's names of what is parametrised -> transformers', whose rows are in this order
PARTS = {
    "embeddings.word_embeddings": ["embeddings.word_embeddings"],
    "embeddings.token_type_embeddings": ["embeddings.token_type_embeddings"],
    "mixer.Wqkv": [f"self_attn.{x}_proj" for x in "qkv"],
    "mixer.out_proj": ["self_attn.o_proj"],
    "mlp.fc1": ["mlp.fc1"],
    "mlp.fc2": ["mlp.fc2"],
    "pooler.dense": ["pooler.dense"],
}

Merged = dict[str | None, PreTrainedModel]


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model random weights, every bias and norm included."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.1 + norm)
    return model.eval()


def theirs() -> PreTrainedModel:
    """transformers' Jina v3."""
    config = transformers.JinaEmbeddingsV3Config(**SIZES, attn_implementation="eager")
    return randomised(transformers.JinaEmbeddingsV3Model(config))


def written(folder: Path, modules: bool = True, **keys: Any) -> Merged:
    """A folder as the hub has it, and the models that its tasks make, by name."""
    reference = theirs()
    reference.save_pretrained(folder)
    plain, tensors = load_file(folder / "model.safetensors"), dict[str, Tensor]()
    merged: Merged = {task: copy.deepcopy(reference) for task in TASKS}
    random = torch.Generator().manual_seed(1)
    for name, tensor in plain.items():
        base = name.removesuffix(".weight")
        kind = next((kind for kind in PARTS if name == f"{base}.weight" and kind in base), None)
        own = f"roberta.{base}"
        if kind is None:
            tensors[f"roberta.{name}"] = tensor
            continue
        rows, width = tensor.shape
        shapes = ((RANK, width), (rows, RANK))  # A, B
        if kind.startswith("embeddings."):
            shapes = ((rows, RANK), (RANK, width))
        a, b = (torch.randn(len(TASKS), *s, generator=random) * 0.1 for s in shapes)
        tensors[f"{own}.parametrizations.weight.original"] = tensor
        tensors[f"{own}.parametrizations.weight.0.lora_A"] = a
        tensors[f"{own}.parametrizations.weight.0.lora_B"] = b
        product = a @ b if kind.startswith("embeddings.") else b @ a
        targets = base.replace("encoder.layers", "layers")
        for place, task in enumerate(TASKS):
            deltas = (product[place] * ALPHA / RANK).chunk(len(PARTS[kind]))
            for part, delta in zip(PARTS[kind], deltas, strict=True):
                with torch.no_grad():
                    merged[task].get_submodule(targets.replace(kind, part)).weight += delta
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {**SIZES, **CONFIG, **keys}
    (folder / "config.json").write_text(json.dumps(config))
    save_small_tokenizer(folder)
    if modules:
        with_modules(folder)
    return {None: reference, **merged}


def with_modules(folder: Path) -> None:
    """Write the modules that the hub's folder has."""
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 42, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    said = {"prompts": INSTRUCTIONS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


def load(folder: Path, **adapters: Path) -> Model:
    """A folder as a replica loads it."""
    return checkpoint.with_adapters(loads.load(folder), folder, adapters)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the hub has it, without modules."""
    folder = tmp_path_factory.mktemp("stored")
    written(folder, modules=False)
    return folder


@pytest.fixture
def plain(stored: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(stored, tmp_path / "plain"))


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Merged, Model]:
    """What the tasks of a folder make, and the same as we load it."""
    folder = tmp_path_factory.mktemp("v3")
    merged = written(folder)
    return merged, load(folder)


def drawn(length: int, pair: bool = True) -> Sequence:
    """Random ids, with types of both segments."""
    random = torch.Generator().manual_seed(length)
    ids = torch.randint(0, VOCABULARY, (length,), generator=random).tolist()
    types = torch.randint(0, TYPES, (length,), generator=random).tolist()
    return Sequence(ids, types if pair else None)


def states(reference: PreTrainedModel, sequence: Sequence) -> tuple[Tensor, ...]:
    """The reference's hidden states, then its maps."""
    ids = torch.tensor([sequence.token_ids])
    types = None if sequence.types is None else torch.tensor([sequence.types])
    more = {} if types is None else {"token_type_ids": types}
    with torch.inference_mode():
        found = reference(ids, **more, output_hidden_states=True, output_attentions=True)
    return tuple(one[0] for one in (*found.hidden_states, *found.attentions))


def run(
    model: Model, sequences: list[Sequence], chosen: list[str | None]
) -> list[tuple[Tensor, ...]]:
    """Hidden states and maps of each sequence of one batch, as lanes run it."""
    layers = range(model.config.layers)
    with torch.inference_mode():
        if len({*chosen}) == 1:
            own = model.adapters[chosen[0]].encoder if chosen[0] else model.encoder
            encoder, packed = own, own.pack(sequences)
        else:
            packed = model.encoder.pack(sequences)
            adapters = [None if name is None else model.adapters[name] for name in chosen]
            encoder = mix_adapters(model.encoder, packed, adapters)
        found = encoder(packed, hidden={*layers, len(layers)}, traces=set(layers))
        heads = range(model.config.heads)
        rows = [packed.rows(i) for i in range(len(sequences))]
        return [
            (
                *(found.hidden[i][each] for i in (*layers, len(layers))),
                *(maps.full_maps(MapReader(found.traces[i], each, heads)) for i in layers),
            )
            for each in rows
        ]


LENGTHS = (1, 2, 11, 11, 23, MOST)
NAMES: tuple[str | None, ...] = (None, *TASKS)


def test_each_text_of_a_batch_has_the_weights_of_its_task(v3: tuple[Merged, Model]) -> None:
    """Hidden states and maps, alone and among other tasks, in float32 and float64; no bit moves."""
    merged, ours = v3
    lengths = (1, 11, MOST)
    sequences = [drawn(n) for n in lengths for _ in NAMES]
    chosen = [*NAMES] * len(lengths)
    together = run(ours, sequences, chosen)

    for sequence, name, mixed in zip(sequences, chosen, together, strict=True):
        (alone,) = run(ours, [sequence], [name])
        exact = copy.deepcopy(merged[name]).double()
        for expected in (states(merged[name], sequence), states(exact, sequence)):
            assert max(apart(alone, expected)) <= 1e-5
        others = (states(merged[other], sequence) for other in NAMES if other != name)
        assert all(max(apart(alone, other)) > 1e-3 for other in others)
        assert all(map(torch.equal, mixed, alone))


def apart(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> list[float]:
    """The largest difference of each pair."""
    return [float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)]


def test_neighbours_move_no_bit_at_any_place(v3: tuple[Merged, Model]) -> None:
    """In random batches of random tasks."""
    _, ours = v3
    sequences = [drawn(n) for n in LENGTHS]
    alone = {(i, n): run(ours, [one], [n])[0] for i, one in enumerate(sequences) for n in NAMES}

    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(sequences), generator=random).tolist()
        chosen = [NAMES[i] for i in torch.randint(0, len(NAMES), (len(order),), generator=random)]
        together = run(ours, [sequences[i] for i in order], chosen)
        for i, name, found in zip(order, chosen, together, strict=True):
            assert all(map(torch.equal, found, alone[i, name])), (i, name)


def test_embeddings_take_the_place_of_the_adapted_rows(v3: tuple[Merged, Model]) -> None:
    """What a request sends is no row of the word table; the type table's is added as ever."""
    merged, ours = v3
    reference = merged[QUERY]
    ids = torch.tensor([drawn(11).token_ids])
    vectors = reference.get_input_embeddings()(ids).detach()
    (found,) = run(ours, [Sequence(embeddings=vectors[0])], [QUERY])
    with torch.inference_mode():
        expected = reference(inputs_embeds=vectors).last_hidden_state[0]

    assert float((found[ours.config.layers] - expected).abs().max()) <= 1e-5


def test_the_hubs_folder_says_how_texts_become_one_vector(v3: tuple[Merged, Model]) -> None:
    """By its modules, of which the first is Jina's own; and what goes before them."""
    _, ours = v3

    assert (ours.pooling.modes, ours.pooling.normalize, ours.states_pooling) == (
        ("mean",),
        True,
        True,
    )
    assert [*ours.adapters] == TASKS
    assert ours.instructions == INSTRUCTIONS
    assert len({one.digest for one in ours.adapters.values()} | {ours.digest}) == 4
    # W and the word table's B, in all layers; A of a table is looked up
    linears = 3 * 42 + 42 + 42 + 42 + 61 + 42 + 42 + 61
    assert ours.adapters[QUERY].products == RANK * (2 * linears + 42 + 42)


@pytest.mark.parametrize("kind", [None, "xlm-roberta"])
def test_a_config_may_have_the_name_of_its_code_or_none(tmp_path: Path, kind: str | None) -> None:
    """And is read as what transformers knows it by; without modules.json too."""
    named = {} if kind is None else {"model_type": kind}
    written(tmp_path, modules=False, **named)
    model = load(tmp_path)

    assert model.config.family == "jina_embeddings_v3"
    assert [*model.adapters] == TASKS


def test_plain_weights_without_adapters_are_read_too(tmp_path: Path) -> None:
    """As jina-colbert-v2's encoder, with the same code and no tasks."""
    reference = theirs()
    reference.save_pretrained(tmp_path)
    config = {k: v for k, v in {**SIZES, **CONFIG}.items() if "lora" not in k}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_small_tokenizer(tmp_path)
    model, sequence = load(tmp_path), drawn(MOST)

    assert not model.adapters
    assert max(apart(run(model, [sequence], [None])[0], states(reference, sequence))) <= 1e-5


def test_the_base_of_the_rotary_angles_is_read(tmp_path: Path) -> None:
    """Its code's default is another one than the hub's."""
    written(tmp_path, rotary_emb_base=500.0)
    reference = theirs()
    reference.config.rope_parameters["rope_theta"] = 500.0
    peer = type(reference)(reference.config).eval()
    peer.load_state_dict(reference.state_dict())
    sequence = drawn(MOST)

    found = run(load(tmp_path), [sequence], [None])[0]
    assert max(apart(found, states(peer, sequence))) <= 1e-5
    assert max(apart(found, states(reference, sequence))) > 1e-3


def refusal(folder: Path, **adapters: Path) -> str:
    """What is said of a folder."""
    with pytest.raises(CheckpointError) as refused:
        load(folder, **adapters)
    return str(refused.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lora_rank": 4}, "is (5, 42), not (4, 42)"),
        ({"lora_rank": None}, "lora_rank None is not a whole number"),
        ({"lora_alpha": True}, "lora_alpha True is not a number"),
        ({"lora_alpha": math.inf}, "lora_alpha inf is not a number"),
        ({"lora_adaptations": TASKS[:2]}, "task_instructions is not of the tasks"),
        (
            {"lora_adaptations": ["a", "b"], "task_instructions": {"a": "", "b": ""}},
            "is (3, 5, 42), not of 2 tasks",
        ),
        ({"lora_adaptations": [QUERY, QUERY, PASSAGE]}, "is not a list of names, each once"),
        ({"lora_adaptations": QUERY}, "is not a list of names"),
        ({"task_instructions": {**INSTRUCTIONS, QUERY: None}}, "are not all texts"),
        ({"load_trained_adapters": False}, "lora_adaptations without load_trained_adapters true"),
        ({"lora_adaptations": None}, "unexpected embeddings.word_embeddings.parametrizations"),
        ({"position_embedding_type": "alibi"}, "model_type"),
        ({"rotary_emb_interleaved": True}, "not supported: rotary_emb_interleaved True"),
        ({"rotary_emb_scale_base": 512}, "not supported: rotary_emb_scale_base 512"),
        ({"rotary_emb_dim": 8}, "not supported: rotary_emb_dim 8"),
        ({"truncate_dim": 16}, "not supported: truncate_dim 16"),
        ({"emb_pooler": "cls"}, "not supported: emb_pooler 'cls'"),
    ],
)
def test_what_a_config_asks_and_is_not_computed_is_refused(
    plain: Path, keys: dict[str, Any], said: str
) -> None:
    """By its key and its value."""
    (plain / "config.json").write_text(json.dumps({**SIZES, **CONFIG, **keys}))

    assert said in refusal(plain)


FC1 = "roberta.encoder.layers.1.mlp.fc1.parametrizations.weight"


WORDS = "roberta.embeddings.word_embeddings.parametrizations.weight"
NORM = "roberta.emb_ln.parametrizations.weight"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (f"{FC1}.0.lora_A", None, f"missing {FC1.removeprefix('roberta.')}.0.lora_A"),
        (f"{FC1}.0.lora_B", None, f"missing {FC1.removeprefix('roberta.')}.0.lora_B"),
        (f"{FC1}.original", None, "missing encoder.layers.1.mlp.fc1.weight"),
        (f"{WORDS}.0.lora_B", None, f"missing {WORDS.removeprefix('roberta.')}.0.lora_B"),
        (f"{FC1}.0.lora_A", torch.ones(3, 5, 43), "is (5, 43), not (5, 42)"),
        (f"{FC1}.0.lora_A", torch.ones(4, 5, 42), "is (4, 5, 42), not of 3 tasks"),
        (f"{FC1}.0.lora_B", torch.full((3, 61, 5), torch.nan), "holds NaN or infinity"),
        (f"{WORDS}.0.lora_A", torch.ones(3, 96, 5), "is (96, 5), not (97, 5)"),
        (f"{WORDS}.0.lora_B", torch.full((3, 5, 42), torch.inf), "holds NaN or infinity"),
        (f"{NORM}.0.lora_A", torch.ones(3, 5, 42), "unexpected emb_ln.lora_A.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    plain: Path, name: str, value: Tensor | None, said: str
) -> None:
    """By their names."""
    path = plain / "model.safetensors"
    tensors = {key: one for key, one in load_file(path).items() if key != name}
    save_file(tensors if value is None else tensors | {name: value}, path)

    assert said in refusal(plain)


def test_an_adapter_may_not_have_the_name_of_a_task(tmp_path: Path) -> None:
    """Nor is one dropped for the other."""
    written(tmp_path)

    assert refusal(tmp_path, separation=tmp_path) == (
        "adapter separation: the checkpoint has a task of that name"
    )


@pytest.mark.parametrize("keys", [{}, {"task_names": TASKS}], ids=["none", "leftover"])
def test_another_models_own_transformer_stays_refused(
    tmp_path: Path, keys: dict[str, object]
) -> None:
    """A class of that name may compute anything, where a checkpoint brings no tasks."""
    reference = theirs()
    reference.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stored | keys))
    save_small_tokenizer(tmp_path)
    with_modules(tmp_path)

    assert "custom_st.Transformer" in refusal(tmp_path)


# what v5's two sizes are made of, and what their config.json say of it
OF_V5: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nano": ("EuroBertConfig", "EuroBertModel", {"is_decoder": False}),
    "small": ("Qwen3Config", "Qwen3Model", {"num_key_value_heads": 3, "head_dim": 14}),
}
KINDS = ["retrieval", "text-matching"]


def written_v5(folder: Path, size: str) -> Merged:
    """A folder of v5 as the hub has it, and the models that its tasks make."""
    config, model, keys = OF_V5[size]
    sizes = {k: v for k, v in SIZES.items() if k not in ("type_vocab_size", "layer_norm_eps")}
    sizes |= {"hidden_act": "silu", "rms_norm_eps": 3e-6, "attn_implementation": "eager", **keys}
    rope = {"rope_type": "default", "rope_theta": 1e6}
    made = getattr(transformers, config)(**sizes, rope_parameters=rope)
    reference = randomised(getattr(transformers, model)(made))
    reference.save_pretrained(folder)
    stored = json.loads((folder / "config.json").read_text())
    said = {"model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"]}
    said |= {"task_names": KINDS, "rope_theta": 1e6, "rope_scaling": None, **keys}
    del stored["rope_parameters"]  # the hub's older names
    (folder / "config.json").write_text(json.dumps(stored | said))
    save_small_tokenizer(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES[:1]))
    prompts = {"prompts": {"query": "Query: ", "document": "Document: "}}
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps(prompts | {"default_prompt_name": "document"})
    )
    (folder / "adapters").mkdir()
    merged: Merged = {None: reference}
    for seed, task in enumerate(KINDS):
        merged[task] = adapter(reference, folder / "adapters" / task, size, seed)
    return merged


@pytest.mark.parametrize("size", OF_V5)
def test_v5_has_an_adapter_for_each_task_and_its_last_tokens_vector(
    tmp_path: Path, size: str
) -> None:
    """By its folders of PEFT's, and by the way that its own code pools."""
    merged = written_v5(tmp_path, size)
    ours, sequence = load(tmp_path), drawn(MOST, pair=False)

    assert [*ours.adapters] == KINDS
    assert (ours.pooling.modes, ours.pooling.normalize) == (("last",), True)
    assert ours.prompts.default == "document"
    assert checkpoint.count_adapter_numbers(tmp_path, {}) >= sum(
        one.products for one in ours.adapters.values()
    )
    chosen: list[str | None] = [None, *KINDS]
    for name, found in zip(chosen, run(ours, [sequence] * 3, chosen), strict=True):
        assert max(apart(found, states(merged[name], sequence))) <= 1e-5
        (alone,) = run(ours, [sequence], [name])
        assert all(map(torch.equal, found, alone))


def test_a_leftover_key_names_no_tasks_of_another_family(tmp_path: Path) -> None:
    """As any key that no class of it knows."""
    reference = randomised(transformers.BertModel(transformers.BertConfig(**SIZES)))
    reference.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    more = {"task_names": KINDS, "lora_adaptations": TASKS}
    (tmp_path / "config.json").write_text(json.dumps(stored | more))
    save_small_tokenizer(tmp_path)

    assert not load(tmp_path).adapters


def test_v5_without_a_folder_of_a_task_is_refused(tmp_path: Path) -> None:
    """By its name."""
    written_v5(tmp_path, "nano")
    (tmp_path / "adapters" / "retrieval" / "adapter_model.safetensors").unlink()

    assert f"adapter {tmp_path}/adapters/retrieval: no adapter_model" in refusal(tmp_path)


def test_the_omni_models_of_v5_are_refused_by_name() -> None:
    """Which read images and sound."""
    with pytest.raises(CheckpointError, match="'jina_embeddings_v5_omni' is not supported"):
        families.read_config_and_family({**SIZES, "model_type": "jina_embeddings_v5_omni"})
