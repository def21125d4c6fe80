"""Rotary angles in every spelling that transformers reads, held to it."""

import itertools
import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from model import families
from model.attention.positions import Rope, Rotation
from model.config import EncoderConfig
from model.errors import CheckpointError
from model.families.ropes import EVERYWHERE, LOCAL
from model.loading.checkpoint import Model
from model.native import library
from model.native.stack import NativeStack
from tests.model.loading.test_families import (
    BATCH,
    FAMILIES,
    MOST,
    NOMIC_HUB,
    WINDOW,
    described,
    furthest,
    inputs,
    moved,
    theirs,
)
from tests.model.loads import CPU, load
from tests.model.small_tokenizer import save_small_tokenizer


@cache
def read(family: str) -> EncoderConfig:
    """A family's small config as we read it."""
    return families.read_config_and_family(described(family).to_dict())[0]


ROTARY = [name for name in FAMILIES if read(name).ropes]
ORIGINAL = "original_max_position_embeddings"
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 8.3},
    "yarn": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 10},
    "yarn, its own length": {"rope_type": "yarn", "factor": 3},
    "yarn, factor by lengths": {"rope_type": "yarn", "factor": None, ORIGINAL: 8},
    "yarn, amplitude": {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 10, "attention_factor": 0.7},
    "yarn, ramp": {
        "rope_type": "yarn",
        "factor": 4,
        ORIGINAL: 30,
        "beta_fast": 4,
        "beta_slow": 0.5,
    },
    "yarn, scales": {"rope_type": "yarn", "factor": 9.0, "mscale": 0.7, "mscale_all_dim": 0.2},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        ORIGINAL: 20,
    },
    "proportional": {"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.6},
    "base": {"rope_type": "default", "rope_theta": 50.0},
}


def under(family: str, ropes: dict[str, Any]) -> dict[str, Any]:
    """The keys of config.json by transformers' newer name."""
    windows = any(read(family).windows)  # of which kind of layers, each has its own
    return {"rope_parameters": dict.fromkeys((EVERYWHERE, LOCAL), ropes) if windows else ropes}


def spelled(ropes: dict[str, Any]) -> dict[str, Any]:
    """The same with the older name of what the angles are called."""
    return {"type" if key == "rope_type" else key: value for key, value in ropes.items()}


SPELLINGS = {
    "rope_parameters": lambda family, ropes: under(family, ropes),
    "rope_parameters, type": lambda family, ropes: under(family, spelled(ropes)),
    "rope_scaling": lambda family, ropes: {"rope_scaling": ropes, "rope_parameters": ...},
    "rope_scaling over rope_parameters": lambda family, ropes: {"rope_scaling": ropes},
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "nomic_bert, rope_scaling with type": (
        "nomic_bert",
        {"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_parameters": ...},
    ),
    "nomic_bert, rope_theta": ("nomic_bert", {"rope_theta": 50.0, "rope_parameters": ...}),
    "nomic_bert, whole numbers": (
        "nomic_bert",
        under("nomic_bert", {**KINDS["yarn"], "truncate": True}),
    ),
    "nomic_bert, ramp within a pair": (
        "nomic_bert",
        under("nomic_bert", {**KINDS["yarn, ramp"], "truncate": False}),
    ),
    "modernbert, theta of each kind": (
        "modernbert",
        {
            "rope_scaling": KINDS["linear"],
            "rope_parameters": ...,
            "global_rope_theta": 80.0,
            "local_rope_theta": 20.0,
        },
    ),
    "gemma3_text, theta of each kind": (
        "gemma3_text",
        {"rope_parameters": ..., "rope_theta": 80.0, "rope_local_base_freq": 20.0},
    ),
    "gemma3_text, a kind apart": (
        "gemma3_text",
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 3.0}}},
    ),
    "modernbert, kinds apart": (
        "modernbert",
        {
            "rope_parameters": {
                "full_attention": {**KINDS["yarn"], "rope_theta": 500.0},
                "sliding_attention": {"type": "linear", "factor": 3},
            }
        },
    ),
}


def rewritten(folder: Path, **keys: object) -> None:
    """config.json with other keys; ... takes one out."""
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | keys
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}), "utf-8")


Both = Callable[..., tuple[PreTrainedModel, Model]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A saved model with other keys in config.json, as transformers and we read it."""
    saved: dict[str, tuple[type[PreTrainedModel], Path, str]] = {}

    def read(family: str, **keys: object) -> tuple[PreTrainedModel, Model]:
        if family not in saved:
            model, folder = theirs(family), tmp_path_factory.mktemp(family)
            model.save_pretrained(folder)
            save_small_tokenizer(folder)
            saved[family] = type(model), folder, (folder / "config.json").read_text("utf-8")
        kind, folder, config = saved[family]
        (folder / "config.json").write_text(config, "utf-8")
        rewritten(folder, **keys)
        return kind.from_pretrained(folder, attn_implementation="eager").eval(), load(folder)

    return read


def cells() -> list[Any]:
    """Family and keys: every kind under the newer name, one of them under every other.

    Outside `prove` each kind and each spelling is of one family, which take turns.
    """
    rows = []
    for turn, family in enumerate(ROTARY):
        kinds = [(kind, under(family, ropes)) for kind, ropes in KINDS.items()]
        spellings = [(f"yarn as {name}", s(family, KINDS["yarn"])) for name, s in SPELLINGS.items()]
        for every in (kinds, spellings):
            for place, (name, keys) in enumerate(every):
                quick = place % len(ROTARY) == turn
                marks = () if quick else pytest.mark.prove
                rows.append(pytest.param(family, keys, id=f"{family}, {name}", marks=marks))
    return rows + [pytest.param(*row, id=name) for name, row in OTHERS.items()]


@pytest.mark.parametrize(("family", "keys"), cells())
def test_stretched_angles_are_those_of_transformers(
    both: Both, family: str, keys: dict[str, Any]
) -> None:
    """Every hidden state and map at the longest length, and beyond a window, within 1e-5."""
    reference, ours = both(family, **keys)

    for length in (WINDOW + 1, MOST):
        assert furthest(reference, ours, family, "ids", length) <= 1e-5


@pytest.mark.parametrize(
    ("family", "kind"),
    list(zip(ROTARY, itertools.cycle(["yarn", "llama3", "dynamic"]), strict=False)),
)
def test_stretched_angles_are_the_same_bits_in_any_batch_and_in_the_compiled_pass(
    both: Both, family: str, kind: str
) -> None:
    """A sequence's angles follow from its own positions, whatever runs it."""
    reference, ours = both(family, **under(family, KINDS[kind]))
    some = [inputs(family, "ids", n, reference)[0] for n in BATCH]

    assert moved(ours, some) == 0

    packed = ours.encoder.pack(some)
    try:
        native = NativeStack(ours.encoder, library.load_operator())
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")
    with torch.inference_mode():
        assert torch.equal(native(packed, set(), set()).last, ours.encoder(packed).last)


@pytest.mark.parametrize("kind", KINDS)
def test_angles_in_the_thousands_are_exact_to_the_bit(kind: str) -> None:
    """The tables that loop and operator share are transformers' own, to position 8191."""
    config = transformers.NomicBertConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=8192,
        rope_parameters={"rope_theta": 20.0, **KINDS[kind]},
    )
    positions = torch.arange(8192)[None]
    rotary = transformers.models.nomic_bert.modeling_nomic_bert.NomicBertRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), positions)

    (rope,) = set(families.read_config_and_family(config.to_dict())[0].ropes)
    ours = Rotation(rope, 64, 8192, CPU)

    assert torch.equal(ours.cos, cos[0, :, :32]) and torch.equal(ours.sin, sin[0, :, :32])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a kind of another length": (
        "nomic_bert",
        under("nomic_bert", {"rope_type": "longrope", "factor": 2}),
        "rope_type 'longrope'; these are: default, ",
    ),
    "no kind": ("nomic_bert", under("nomic_bert", {"rope_type": None}), "rope_type None"),
    "two kinds": (
        "nomic_bert",
        under("nomic_bert", {"rope_type": "default", "type": "linear", "factor": 2}),
        "rope_type 'default', which transformers follows, and type 'linear'",
    ),
    "type, where transformers looks for rope_type": (
        "modernbert",
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None},
        "rope_type 'default', which transformers follows, and type 'linear'",
    ),
    "what its kind does not read": (
        "nomic_bert",
        under("nomic_bert", {**KINDS["dynamic"], ORIGINAL: 10}),
        f"{ORIGINAL} 10",
    ),
    "channels that do not turn": (
        "nomic_bert",
        under("nomic_bert", {**KINDS["linear"], "partial_rotary_factor": 0.5}),
        "partial_rotary_factor 0.5",
    ),
    "the same beside": ("modernbert", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    "no factor": ("nomic_bert", under("nomic_bert", {"rope_type": "linear"}), "lacks 'factor'"),
    "no number": (
        "nomic_bert",
        under("nomic_bert", {"rope_type": "linear", "factor": "2"}),
        "factor '2'",
    ),
    "an endless factor": (
        "modernbert",
        under("modernbert", {"rope_type": "linear", "factor": math.inf}),
        "factor inf",
    ),
    "no length": (
        "nomic_bert",
        under("nomic_bert", {**KINDS["yarn"], ORIGINAL: 0}),
        f"{ORIGINAL} 0",
    ),
    "another length beside": (
        "nomic_bert",
        under("nomic_bert", KINDS["yarn"]) | {ORIGINAL: 20},
        f"{ORIGINAL} 20",
    ),
    "no band": (
        "nomic_bert",
        under("nomic_bert", {**KINDS["llama3"], "high_freq_factor": 1.0}),
        "high_freq_factor 1.0",
    ),
    "a ramp that transformers overlooks": (
        "modernbert",
        under("modernbert", {**KINDS["yarn"], "truncate": False}),
        "truncate False",
    ),
    "one for all kinds of layer": (
        "modernbert",
        {"rope_parameters": KINDS["linear"]},
        "rope_parameters for other layer_types: factor, rope_type",
    ),
    "no dictionary": ("nomic_bert", {"rope_scaling": "linear"}, "rope_scaling 'linear'"),
    "the hub's spelling": ("hub", {"rope_scaling": KINDS["linear"]}, "rope_scaling"),
    "the hub's factor": ("hub", {"rotary_scaling_factor": 2}, "rotary_scaling_factor 2"),
}


@pytest.mark.parametrize(("family", "keys", "told"), REFUSED.values(), ids=list(REFUSED))
def test_angles_that_transformers_or_we_do_not_compute_are_refused(
    family: str, keys: dict[str, Any], told: str
) -> None:
    """By the key and its value, in one line."""
    if family == "hub":
        config = NOMIC_HUB
    else:
        config = described(family).to_dict()

    with pytest.raises(CheckpointError) as refused:
        families.read_config_and_family({**config, **keys})

    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_what_stretches_nothing_is_plain() -> None:
    """The hub's checkpoints and transformers' turn as they did."""
    assert set(families.read_config_and_family(NOMIC_HUB)[0].ropes) == {Rope(theta=1000.0)}
