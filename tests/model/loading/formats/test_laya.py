"""Laya's head against the laya library, with random weights; and what a folder may not say."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from laya import Agent
from laya.common import QTYPES, build_sequence
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModel

from model import kernels
from model.decider import Decider, Marks
from model.decisions import Kind, Temperatures
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps.maps import full_maps
from model.maps.tiles import MapReader
from model.native import library
from model.native.stack import NativeStack
from model.packing import Sequence
from tests.laya_models import KINDS, LAYA, POSITIONS, make_laya, open_library
from tests.model.loads import load

CLOSE = 1e-5
TALK = [{"role": "user", "content": "Where is my parcel? It is late, caf\u00e9 stra\u00dfe"}]
STATES = ("The refund was refused. [MASK] <mask> Answer!", TALK, {"urgent": True}, "word " * 700)
QUESTIONS: tuple[Mapping[str, Any], ...] = (
    {"t": "noul", "ins": "Is it urgent?", "crit": None},
    {"t": "noul", "ins": "", "crit": {"true": {"money": [1, None]}}},
    {"t": "choice", "ins": "Which team?", "crit": {"refund": None, "parcel": "where it is"}},
    {"t": "choice", "ins": "Which?", "crit": {f"o{i}": f"option {i} " * i for i in range(12)}},
    {"t": "score", "ins": "How urgent?", "crit": ["not at all", {"when": "soon"}, "now"]},
    {"t": "score", "ins": "One level", "crit": ["alone"]},
)
LONG = {"max_len": 2048, "head_max_len": 1900}
WEIGHTS = "model.safetensors"
SHAPES: dict[str, dict[str, Any]] = {  # of checkpoints
    "no layers": {"head_layers": 0},
    "one layer": {"head_layers": 1},
    "three heads": {"width": 192},
    "two channels a head": {"width": 12, "seed": 7},
    "other windows": {"local_attention": 6, "global_attn_every_n_layers": 2, "settings": {}},
    **{kind: {"kind": kind} for kind in KINDS},
}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each shape."""
    return make_laya(tmp_path_factory.mktemp("laya") / "model", **request.param)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Agent:
    """The same in the library."""
    return open_library(folder)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A small one, to be changed."""
    return make_laya(tmp_path / "laya", width=12, num_hidden_layers=1)


def decider(model: Model) -> Decider:
    """The head that decides."""
    (head,) = model.task_heads
    assert isinstance(head, Decider)
    return head


Asked = tuple[list[int], list[int], Kind]  # ids, places of the options, and the kind


def ask(theirs: Agent, **lengths: int) -> list[Asked]:
    """The library's own sequences for all questions of all states."""
    return [
        (*build_sequence(theirs.tok, state, question, **lengths)[:2], question["t"])
        for state in STATES
        for question in QUESTIONS
    ]


@torch.inference_mode()
def their_logits(theirs: Agent, asked: Asked) -> Tensor:
    """What the library computes of a sequence alone."""
    ids, markers, kind = asked
    given = torch.tensor([ids])
    seen = torch.ones(1, len(markers), dtype=torch.bool)
    places, qtype = torch.tensor([markers]), torch.tensor([QTYPES[kind]])
    logits: Tensor = theirs.model(given, torch.ones_like(given), places, seen, qtype)[0]
    return logits[0]


@torch.inference_mode()
def our_logits(model: Model, batch: list[Asked]) -> list[Tensor]:
    """What we compute of each sequence of a batch."""
    encoded = model.encoder(model.encoder.pack([Sequence(ids) for ids, _, _ in batch]))
    return [
        replace(decider(model), kind=kind, markers=markers)(
            encoded.last[encoded.packed.rows(index)]
        )["logits"]
        for index, (_, markers, kind) in enumerate(batch)
    ]


def test_logits_are_the_librarys(folder: Path, theirs: Agent) -> None:
    """Of every kind of question and state, by the loop and in the compiled pass."""
    model, every = load(folder), ask(theirs)

    found = our_logits(model, every)
    compile_both(model)
    compiled = our_logits(model, every)

    for asked, ours, native in zip(every, found, compiled, strict=True):
        torch.testing.assert_close(ours, their_logits(theirs, asked), rtol=0, atol=CLOSE)
        assert torch.equal(ours, native)


def compile_both(model: Model) -> None:
    """Run the encoder's layers and the head's in the operator."""
    try:
        operator = library.load_operator()
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")
    for encoder in filter(None, (model.encoder, decider(model).layers)):
        encoder.native = NativeStack(encoder, operator)


def test_a_batch_changes_no_bit(folder: Path, theirs: Agent) -> None:
    """Alone or among others, of other lengths and the same."""
    model, every = load(folder), ask(theirs, max_len=60, head_max_len=40) + ask(theirs)[::5]

    together = our_logits(model, every)

    for asked, ours in zip(every, together, strict=True):
        assert torch.equal(ours, our_logits(model, [asked])[0])


@torch.inference_mode()
def test_what_an_option_looks_at_in_the_head_is_torchs_attention(tmp_path: Path) -> None:
    """The maps of each layer and head, of every token to every other."""
    folder = make_laya(tmp_path / "laya", width=192, num_hidden_layers=1)
    theirs, head = open_library(folder).model, decider(load(folder))
    tokens = torch.randn(41, 192, generator=torch.Generator().manual_seed(0))

    found = replace(head, kind="score").run_layers(tokens, frozenset({0, 1}))

    h = tokens[None] + theirs.type_emb(torch.tensor([QTYPES["score"]]))
    for place, layer in enumerate(theirs.head.layers):
        x = layer.norm1(h)
        expected = layer.self_attn(x, x, x, need_weights=True, average_attn_weights=False)[1][0]
        shown = full_maps(MapReader(found.traces[place], found.packed.rows(0), range(3)))
        torch.testing.assert_close(shown, expected, rtol=0, atol=CLOSE)
        h = layer(h)
    last = found.last[found.packed.rows(0)]
    torch.testing.assert_close(last, h[0], rtol=0, atol=CLOSE)


def test_as_many_options_as_a_question_may_have_are_decided(tmp_path: Path) -> None:
    """In a longer sequence than usual."""
    folder = make_laya(tmp_path / "laya", width=12, num_hidden_layers=1, settings=LONG)
    theirs, model = open_library(folder), load(folder)
    options = {f"o{i}": None for i in range(255)}
    question = {"t": "choice", "ins": "Which of them?", "crit": options}
    ids, markers = build_sequence(theirs.tok, "word " * 2000, question, 2048, 1900)
    asked: Asked = (ids, markers, "choice")

    (found,) = our_logits(model, [asked])

    assert (len(ids), len(markers), model.max_tokens) == (2048, 255, 2048)
    torch.testing.assert_close(found, their_logits(theirs, asked), rtol=0, atol=CLOSE)


def test_the_settings_and_special_tokens_are_the_folders(made: Path) -> None:
    """Temperatures as stored, by kind and number of options; the longest sequence too."""
    model = load(made)
    head = decider(model)

    assert model.tasks == ("encode", "decide") and model.max_tokens == 512
    assert head.window == (512, 192)
    assert head.marks == Marks(cls=2, separator=3, mask=4, mask_text="[MASK]", side="right")
    assert head.temperatures == Temperatures(
        (1.25, 0.75, 1.5), {"choice:3-5": 2.0, "choice:11+": 0.1}
    )


def change(folder: Path, **values: Any) -> None:
    """Change the settings; None removes one."""
    stored = json.loads((folder / LAYA).read_text()) | values
    kept = {name: value for name, value in stored.items() if value is not None}
    (folder / LAYA).write_text(json.dumps(kept))


def test_lengths_are_at_most_the_encoders_positions(made: Path) -> None:
    """And the library's own where no file says."""
    change(made, max_len=4 * POSITIONS, head_max_len=None)
    assert (load(made).max_tokens, decider(load(made)).window) == (POSITIONS, (POSITIONS, 192))
    change(made, max_len=None, head_max_len=31)
    assert (load(made).max_tokens, decider(load(made)).window) == (512, (512, 31))


def test_an_option_is_cut_at_the_tokenizers_side(made: Path) -> None:
    """As its files say."""
    path = made / "tokenizer" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation_side": "left"}))

    assert decider(load(made)).marks.side == "left" == open_library(made).tok.truncation_side


def test_the_digest_covers_the_settings_and_the_tokenizer(made: Path) -> None:
    """Each of the files decides answers."""
    before = load(made)
    change(made, temperature=[1.25, 0.75, 1.0])
    after = load(made)
    path = made / "tokenizer" / "tokenizer_config.json"
    path.write_text(path.read_text().replace('"[SEP]"', '"[CLS]"'))

    digests = [before.digest, after.digest, load(made).digest]
    assert len({*digests}) == 3 and before.digest_parts == after.digest_parts


REFUSED_SETTINGS: dict[str, dict[str, Any]] = {
    "not supported: option_layout 'parallel'": {"option_layout": "parallel"},
    "not supported: option_layout 'round'": {"option_layout": "round"},
    r"temperature is not a list of 3, for choice, score, noul: \[1.0\]": {"temperature": [1.0]},
    "temperature is not a list of 3, for choice, score, noul: 2": {"temperature": 2},
    r"temperature_by_options is no object: \[2\]": {"temperature_by_options": [2]},
    "act_costs is no object: 3": {"act_costs": 3},
    "lacks head_layers": {"head_layers": None},
    "head_layers is no whole number from 0 up: -1": {"head_layers": -1},
    "max_len is no whole number from 1 up: 0": {"max_len": 0},
    "max_len is no whole number from 1 up: True": {"max_len": True},
    "head_max_len is no whole number from 1 up: '9'": {"head_max_len": "9"},
    r"act_head.2.weight is \(3, 256\), not \(1, 256\)": {"act_costs": {}},
    "missing head.layers.2.linear1.bias": {"head_layers": 3},
    "unexpected head.layers.1.self_attn.in_proj_weight": {"head_layers": 1},
}


@pytest.mark.parametrize(("said", "settings"), REFUSED_SETTINGS.items(), ids=REFUSED_SETTINGS)
def test_settings_are_refused_by_name(made: Path, said: str, settings: dict[str, Any]) -> None:
    """In one line."""
    change(made, **settings)

    with pytest.raises(CheckpointError, match=said) as refused:
        load(made)
    assert "\n" not in str(refused.value)


def remove(*names: str) -> Callable[[Path], None]:
    """A change of a folder that removes files."""

    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def put(name: str, value: Tensor | None) -> Callable[[Path], None]:
    """A change of a folder that puts a tensor in place of another; None: it is left out."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS) | {name: value}
        kept = {key: one for key, one in tensors.items() if one is not None}
        save_file(kept, folder / WEIGHTS)

    return change


def unname(token: str) -> Callable[[Path], None]:
    """A change of a folder whose tokenizer then has no such token."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer" / "tokenizer_config.json"
        stored = json.loads(path.read_text())
        del stored[token]
        path.write_text(json.dumps(stored))

    return change


REFUSED_FOLDERS: dict[str, Callable[[Path], None]] = {
    "lacks encoder/config.json": remove("encoder/config.json"),
    "lacks tokenizer/tokenizer.json": remove("tokenizer/tokenizer.json"),
    "lacks model.safetensors": remove(WEIGHTS),
    "rl_agent_config.json is not JSON": lambda folder: (folder / LAYA).write_text("{") and None,
    "missing scorer.3.bias": put("scorer.3.bias", None),
    "missing temperature": put("temperature", None),
    "missing type_emb.weight": put("type_emb.weight", None),
    "missing embeddings.norm.weight": put("encoder.embeddings.norm.weight", None),
    "unexpected head.norm.weight": put("head.norm.weight", torch.ones(12)),
    r"scorer.1.weight is \(12, 13\), not \(12, 12\)": put("scorer.1.weight", torch.ones(12, 13)),
    "norm1.weight holds NaN": put("head.layers.0.norm1.weight", torch.full((12,), torch.nan)),
    "tokenizer.json lacks mask_token": unname("mask_token"),
    "next to modules.json": lambda folder: (folder / "modules.json").write_text("[]") and None,
}


@pytest.mark.parametrize(("said", "harm"), REFUSED_FOLDERS.items(), ids=REFUSED_FOLDERS)
def test_a_folder_is_refused_by_what_is_wrong(
    made: Path, said: str, harm: Callable[[Path], None]
) -> None:
    """In one line that names it."""
    harm(made)

    with pytest.raises(CheckpointError, match=said) as refused:
        load(made)
    assert "\n" not in str(refused.value)


def test_a_width_that_the_heads_do_not_divide_is_refused(made: Path) -> None:
    """The library cannot build such a head either."""
    config = AutoConfig.from_pretrained(made / "encoder", hidden_size=200, num_attention_heads=5)
    config.save_pretrained(made / "encoder")
    tensors = AutoModel.from_config(config).state_dict()
    save_file({f"encoder.{name}": one for name, one in tensors.items()}, made / WEIGHTS)

    with pytest.raises(CheckpointError, match="not supported: 3 heads do not divide width 200"):
        load(made)


def test_only_the_headers_are_read_of_a_model_that_is_checked(made: Path) -> None:
    """As the doctor does, in no memory."""
    model = checkpoint.load_checkpoint(
        made, torch.device("meta"), torch.float32, kernels.PLAIN, numbers=False
    )

    assert decider(model).types.is_meta and model.digest == ""
