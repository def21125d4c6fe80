"""Decoders as embedders: every form of Qwen3's config and of Gemma's, their folders as saved."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from model import families, kernels
from model.attention.attention import TILE_QUERIES
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.maps.units import divide_into_units
from model.native import library
from model.native.stack import NativeStack
from model.packing import Sequence
from model.pooling import pool_sequence
from model.similarity import LinearPooling
from tests import decoders
from tests.model.loading.test_families import (
    BATCH,
    MOST,
    WINDOW,
    furthest,
    inputs,
    moved,
    theirs,
)
from tests.model.loading.test_families import saved as reread
from tests.model.loads import CPU, load
from tests.model.small_tokenizer import save_small_tokenizer

FAMILY, GEMMA = "qwen3", "gemma3_text"
LONG = 3 * TILE_QUERIES + 5
TEXTS = [
    "A dog ate the food because it was hungry",
    "why?",
    "The animal did not cross the street, since it was too tired; 12,5 km were left.",
]

FORMS: dict[str, dict[str, Any]] = {
    "keys of each head": {"num_key_value_heads": 6},
    "one head of keys": {"num_key_value_heads": 1},
    "biases": {"attention_bias": True},
    "narrow heads": {"head_dim": 2},
    "heads that divide the width": {"head_dim": 8},
    "to both sides": {"is_causal": False},
}
# what the hub's config.json hold of Qwen3-Embedding, 0.6B, 4B and 8B; the rerankers' are alike
PUBLISHED = {
    "0.6B": (1024, 28, 16, 3072),
    "4B": (2560, 36, 32, 9728),
    "8B": (4096, 36, 32, 12288),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_is_theirs(tmp_path: Path, form: dict[str, Any]) -> None:
    """States and maps of the longest sequence; and bits do not follow from the batch."""
    reference = theirs(FAMILY, **form)
    ours = reread(reference, tmp_path)

    assert furthest(reference, ours, FAMILY, "ids", MOST) <= 1e-5
    assert moved(ours, [inputs(FAMILY, "ids", n, reference)[0] for n in BATCH]) == 0


def test_a_sequence_of_several_tiles_is_theirs(tmp_path: Path) -> None:
    """One short of a tile, all of it, one more, and three of them."""
    lengths = (TILE_QUERIES - 1, TILE_QUERIES, TILE_QUERIES + 1, LONG)
    reference = theirs(FAMILY, max_position_embeddings=LONG)
    ours = reread(reference, tmp_path)

    assert max(furthest(reference, ours, FAMILY, "ids", n) for n in lengths) <= 1e-5
    assert moved(ours, [inputs(FAMILY, "ids", n, reference)[0] for n in lengths]) == 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model of several tiles."""
    folder = tmp_path_factory.mktemp(FAMILY)
    return reread(theirs(FAMILY, max_position_embeddings=LONG), folder)


@pytest.mark.parametrize("tokens", [MOST, LONG])
@torch.inference_mode()
def test_no_token_follows_from_those_after_it(small: Model, tokens: int) -> None:
    """To the last bit while lengths, and so kernels, are alike; and maps are triangles."""
    encoder, place = small.encoder, tokens // 2
    ids = [5 + i % 80 for i in range(tokens)]
    others = [*ids[:place], *[9] * (tokens - place)]
    packed = encoder.pack([Sequence(ids), Sequence(others)])

    encoded = encoder(packed, traces={1})

    one, other = (encoded.last[packed.rows(i)] for i in (0, 1))
    assert torch.equal(one[:place], other[:place]) and not torch.equal(one[-1], other[-1])
    shown = maps.full_maps(MapReader(encoded.traces[1], packed.rows(0), range(6)))
    assert not shown.triu(1).any()
    torch.testing.assert_close(shown.sum(2), torch.ones(6, tokens), rtol=0, atol=1e-5)


@torch.inference_mode()
def test_keys_and_values_are_kept_once_for_the_heads_that_share_them(small: Model) -> None:
    """What a trace holds of a token: six heads of queries, two of keys and of values."""
    encoder, head = small.encoder, small.config.head_dim
    trace = encoder(encoder.pack([Sequence([5] * MOST)]), traces={0}).traces[0]

    assert [part.shape[1:] for part in (trace.q, trace.k, trace.v)] == [(6, head), *[(2, head)] * 2]
    assert trace.k.untyped_storage().nbytes() == trace.q.untyped_storage().nbytes() / 3


@pytest.mark.parametrize("family", ["eurobert", FAMILY, GEMMA])
def test_the_compiled_pass_is_theirs(tmp_path: Path, family: str) -> None:
    """States and maps across tiles, made of what the operator leaves."""
    reference = theirs(family, max_position_embeddings=LONG)
    ours = reread(reference, tmp_path)
    try:
        ours.encoder.native = NativeStack(ours.encoder, library.load_operator())
    except library.OperatorMissing as reason:
        pytest.skip(f"no compiled forward pass: {reason}")

    for length in (1, MOST, TILE_QUERIES + 1):
        assert furthest(reference, ours, family, "ids", length) <= 1e-5
    assert moved(ours, [inputs(family, "ids", n, reference)[0] for n in BATCH]) == 0


@pytest.mark.parametrize(("width", "layers", "heads", "inner"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_configs_are_read(width: int, layers: int, heads: int, inner: int) -> None:
    """With keys that change no number."""
    config = families.read_config_and_family(
        {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151643,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": width,
            "intermediate_size": inner,
            "max_position_embeddings": 32768,
            "max_window_layers": layers,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "use_cache": False,
            "use_sliding_window": False,
            "vocab_size": 151669,
        }
    )[0]

    assert (config.heads, config.key_heads, config.head_dim) == (heads, 8, 128)
    assert config.causal and config.mixed_width == 128 * heads


REFUSED = {
    "local layers": ({"use_sliding_window": True}, "not supported: use_sliding_window True"),
    "some local layers": (
        {"layer_types": ["full_attention", "sliding_attention"] * 2},
        r"not supported: layer_types \['full_attention', 'sliding_attention'",
    ),
    "angles of an unknown kind": (
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        "not supported: rope_type 'longrope'",
    ),
    "half a pair": ({"head_dim": 7}, "rotary positions turn channels in pairs: head_dim 7"),
    "keys for some heads": (
        {"num_key_value_heads": 4},
        r"key_heads \(4\) must divide heads \(6\)",
    ),
    "no keys": ({"num_key_value_heads": 0}, "key_heads must be a positive whole number, not 0"),
    "heads of null": ({"head_dim": None}, "not supported: head_dim null"),
    "no heads": ({"head_dim": 0}, "head_size must be a positive whole number, not 0"),
    "causal by one kernel alone": ({"is_causal": None}, "not supported: is_causal None"),
}


@pytest.mark.parametrize(("keys", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_name(keys: dict[str, Any], told: str) -> None:
    """In one line, with its value."""
    config = {**theirs(FAMILY).config.to_dict(), **keys}

    with pytest.raises(CheckpointError, match=told):
        families.read_config_and_family(config)


def test_heads_that_say_nothing_of_their_keys_each_have_their_own() -> None:
    """As in transformers, where null stands for as many."""
    config = {**theirs(FAMILY).config.to_dict(), "num_key_value_heads": None}

    assert families.read_config_and_family(config)[0].shared_heads == 6


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as sentence-transformers saves Qwen3-Embedding."""
    plain, folder = (tmp_path_factory.mktemp(name) for name in ("plain", "embedder"))
    return decoders.embedder(plain, folder)


PAIRWISE = [
    (None, None, "left"),
    (None, 20, "right"),
    ("query", None, "right"),
    ("query", 20, "left"),
]


@torch.inference_mode()
def vectors(model: Model, prompt: str, dimensions: int | None = None) -> Tensor:
    """The texts' vectors from one batch, (texts, size)."""
    how = replace(model.pooling, dimensions=dimensions)
    given = [(text,) for text in TEXTS]
    read = model.tokenizer(given, model.max_tokens, prompt=prompt)
    packed = model.encoder.pack([Sequence(one.token_ids) for one in read])
    last = model.encoder(packed).last
    return torch.stack([pool_sequence(last[packed.rows(i)], how) for i in range(len(read))])


@pytest.mark.parametrize(
    ("name", "dimensions", "side"),
    [  # each pair of choices; `make prove` tries all three together
        pytest.param(*cell, marks=() if cell in PAIRWISE else pytest.mark.prove)
        for cell in product((None, "query"), (None, 20), ("left", "right"))
    ],
)
def test_a_folder_of_sentence_transformers_gives_that_librarys_vectors(
    embedder: Path, name: str | None, dimensions: int | None, side: str
) -> None:
    """Padded on either side there, which moves positions and no angle between two tokens."""
    peer = SentenceTransformer(str(embedder), device="cpu", truncate_dim=dimensions)
    peer.tokenizer.padding_side = side
    expected = peer.encode(TEXTS, prompt_name=name, convert_to_tensor=True)
    if dimensions:
        expected = torch.nn.functional.normalize(expected, dim=1)
    ours = load(embedder)

    found = vectors(ours, ours.prompts.find(name), dimensions)

    assert (found - expected).abs().max() <= 1e-5
    assert ours.tokenizer([(TEXTS[1],)], 99)[0].tokens[-1] == "<|endoftext|>"


def test_a_template_of_messages_is_passed_over_where_modules_take_texts(
    embedder: Path, tmp_path: Path
) -> None:
    """As in sentence-transformers, which uses it in a plain folder: such a one is refused."""
    plain = tmp_path / "plain"
    shutil.copytree(embedder, plain)
    for name in ("modules.json", "config_sentence_transformers.json"):
        (plain / name).unlink()

    assert load(embedder).pooling.modes == ("last",)
    with pytest.raises(CheckpointError, match="not supported: chat_template"):
        load(plain)


@pytest.mark.parametrize("causal", [{}, {"is_causal": False}], ids=["causal", "to both sides"])
def test_a_plain_language_model_is_pooled_as_that_library_pools_it(
    tmp_path: Path, causal: dict[str, bool]
) -> None:
    """By its last token while it is causal; and that is said to be a default."""
    folder = decoders.language_model(tmp_path)
    (folder / "chat_template.jinja").unlink()
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | causal))
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
    ours = load(folder)

    assert (vectors(ours, "") - expected).abs().max() <= 1e-5
    assert ours.pooling.modes == (("mean",) if causal else ("last",)) and not ours.states_pooling


def test_tensors_may_have_their_names_of_a_language_model(tmp_path: Path, embedder: Path) -> None:
    """With "model." before each, and a head over the vocabulary that is passed over."""
    shutil.copytree(embedder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    named: dict[str, Tensor] = load_file(path)
    renamed = {f"model.{name.removeprefix('model.')}": one for name, one in named.items()}
    save_file(renamed | {"lm_head.weight": torch.zeros(520, 48)}, path)

    assert torch.equal(vectors(load(tmp_path), ""), vectors(load(embedder), ""))


@pytest.mark.parametrize(
    "form", [{"attention_bias": True, "mlp_bias": True}, {"head_dim": 10}], ids=["biases", "heads"]
)
def test_llama_is_read_under_the_name_of_nvidias_code(tmp_path: Path, form: dict[str, Any]) -> None:
    """As EuroBERT, whose layers it has: angles of Llama 3, keys that its own class adds."""
    angles = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 20,
    }
    reference = theirs("eurobert", rope_parameters={**angles, "rope_theta": 500.0}, **form)
    reread(reference, tmp_path)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text()) | {
        "model_type": "llama_bidirec",
        "architectures": ["LlamaBidirectionalModel"],
        "auto_map": {"AutoModel": "llama_bidirectional_model.LlamaBidirectionalModel"},
        "pooling": "avg",
        "rope_scaling": angles,
        "rope_theta": 500.0,
        "temperature": 0.02,
    }
    path.write_text(json.dumps({k: v for k, v in raw.items() if k != "rope_parameters"}))
    ours = load(tmp_path)

    assert ours.config.family == "llama_bidirec"
    assert furthest(reference, ours, "eurobert", "ids", MOST) <= 1e-5
    assert moved(ours, [inputs("eurobert", "ids", n, reference)[0] for n in BATCH]) == 0


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as sentence-transformers saves EmbeddingGemma."""
    plain, folder = (tmp_path_factory.mktemp(name) for name in ("plain", "gemma"))
    return decoders.embedding_gemma(plain, folder)


@pytest.mark.parametrize(
    ("name", "dimensions"),
    [
        (None, None),
        ("query", 20),
        ("document", None),
        *(
            pytest.param(*cell, marks=pytest.mark.prove)
            for cell in ((None, 20), ("query", None), ("document", 20))
        ),
    ],
)
def test_embedding_gemma_gives_the_librarys_vectors(
    gemma: Path, name: str | None, dimensions: int | None
) -> None:
    """The mean through two Dense layers, alone there, with its prompts and cut."""
    peer = SentenceTransformer(str(gemma), device="cpu", truncate_dim=dimensions)
    alone = [peer.encode(text, prompt_name=name, convert_to_tensor=True) for text in TEXTS]
    expected = torch.nn.functional.normalize(torch.stack(alone), dim=1)
    ours = load(gemma)

    found = vectors(ours, ours.prompts.find(name), dimensions)

    assert (found - expected).abs().max() <= 1e-5
    assert ours.tokenizer([(TEXTS[1],)], 99)[0].tokens[0] == "<bos>"


@torch.inference_mode()
def test_embedding_gemmas_likeness_is_a_sum_over_pairs_of_tokens(gemma: Path) -> None:
    """Its Dense layers are linear: the shares add up to the cosine."""
    model = load(gemma)
    read = model.tokenizer([(text,) for text in TEXTS[:2]], 99)
    packed = model.encoder.pack([Sequence(one.token_ids) for one in read])
    last = model.encoder(packed).last
    linear, rows = LinearPooling(model.pooling), [packed.rows(i) for i in (0, 1)]
    sides = [
        linear.weigh_text(last[each], divide_into_units(each.stop - each.start)) for each in rows
    ]

    shares = linear.share_cosine(*sides)

    one, other = (pool_sequence(last[each], model.pooling) for each in rows)
    total = sum(float(block.sum()) for block in shares.blocks())
    assert total + shares.bias == pytest.approx(float(one @ other), abs=1e-6)


GEMMAS: dict[str, dict[str, Any]] = {
    "causal": {"use_bidirectional_attention": False, "sliding_window": WINDOW},
    "causal, of whole windows": {"use_bidirectional_attention": False, "sliding_window": 1},
    "an odd window": {"sliding_window": 2 * WINDOW + 1},
    "to both sides, by its mask": {"use_bidirectional_attention": False, "is_causal": False},
    "to both sides, by either": {"is_causal": False, "sliding_window": WINDOW + 1},
    "everywhere": {"layer_types": ["full_attention"] * 4, "sliding_window": 2},
    "nowhere": {"layer_types": ["sliding_attention"] * 4},
    "by a pattern": {"layer_types": None},
    "biases": {"attention_bias": True},
}


@pytest.mark.parametrize("form", GEMMAS.values(), ids=GEMMAS)
def test_every_form_of_gemma_is_theirs(tmp_path: Path, form: dict[str, Any]) -> None:
    """States and maps of the longest sequence; and bits do not follow from the batch."""
    reference = theirs(GEMMA, **form)
    ours = reread(reference, tmp_path)

    assert furthest(reference, ours, GEMMA, "ids", MOST) <= 1e-5
    assert moved(ours, [inputs(GEMMA, "ids", n, reference)[0] for n in BATCH]) == 0


@pytest.mark.parametrize("causal", [True, False])
def test_windows_of_gemma_reach_across_tiles(tmp_path: Path, causal: bool) -> None:
    """To one side or to both."""
    lengths = (TILE_QUERIES, TILE_QUERIES + 1, LONG)
    form = {"use_bidirectional_attention": not causal, "sliding_window": TILE_QUERIES + 3}
    reference = theirs(GEMMA, max_position_embeddings=LONG, **form)
    ours = reread(reference, tmp_path)

    assert max(furthest(reference, ours, GEMMA, "ids", n) for n in lengths) <= 1e-5
    assert moved(ours, [inputs(GEMMA, "ids", n, reference)[0] for n in lengths]) == 0


@torch.inference_mode()
def test_gemmas_norms_round_once_in_bfloat16(tmp_path: Path) -> None:
    """As in transformers, which adds 1 to a weight in float32."""
    reference = theirs(GEMMA).bfloat16()
    reference.save_pretrained(tmp_path)
    save_small_tokenizer(tmp_path)
    ours = checkpoint.load_checkpoint(tmp_path, CPU, torch.bfloat16, kernels.PLAIN).encoder
    x = torch.randn(31, 48, dtype=torch.bfloat16)

    assert (norm := ours.layers[-1].norms.after)
    found = kernels.normalise(x, norm, ours.config.norm_eps, ours.config.norm)
    assert torch.equal(found, reference.get_submodule("norm")(x))


def test_the_published_config_of_embedding_gemma_is_read() -> None:
    """As the hub has it, with older names of its angles."""
    config = families.read_config_and_family(
        {
            "model_type": "gemma3_text",
            "architectures": ["Gemma3TextModel"],
            "_sliding_window_pattern": 6,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 768,
            "intermediate_size": 1152,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 4,
            "max_position_embeddings": 2048,
            "num_attention_heads": 3,
            "num_hidden_layers": 24,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": None,
            "rope_theta": 1000000.0,
            "sliding_window": 512,
            "use_bidirectional_attention": True,
            "vocab_size": 262144,
        }
    )[0]

    assert [config.reach_of_layer(layer) for layer in (4, 5)] == [(256, 256), (None, None)]
    assert [config.ropes[layer].theta for layer in (4, 5)] == [1e4, 1e6]


WRONG = {
    "capped scores": ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping 30.0"),
    "heads of null": ({"head_dim": None}, "head_dim null"),
    "no window": ({"sliding_window": None}, "sliding_window None"),
    "no scale": ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar 0"),
    "another kind of layer": ({"layer_types": ["chunked_attention"] * 4}, "layer_types "),
    "no pattern": ({"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern 0"),
    "angles for all": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "rope_parameters for other layer_types: rope_theta, rope_type",
    ),
}


@pytest.mark.parametrize(("keys", "told"), WRONG.values(), ids=WRONG)
def test_what_gemma_does_and_is_not_computed_is_refused(keys: dict[str, Any], told: str) -> None:
    """By name, in one line."""
    config = {**theirs(GEMMA).config.to_dict(), **keys}

    with pytest.raises(CheckpointError, match=f"not supported: {re.escape(told)}"):
        families.read_config_and_family(config)
