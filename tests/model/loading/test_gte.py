"""GTE in the spelling of its own code (Alibaba-NLP/new-impl, model_type "new"), which never runs.

transformers knows the architecture as "gte" and reads the same tensors, so it is the reference for
all but the angles that only that code has.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor
from transformers import PreTrainedModel

from model import families, kernels
from model.attention.positions import NtkRope, Rope
from model.config import LINEAR_NAMES
from model.errors import CheckpointError
from model.families import bert
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.task_heads import Classifier, Splade
from tests.model.loading.test_families import CPU, LENGTHS, MOST, VOCABULARY, furthest, theirs
from tests.model.loading.test_task_heads import KINDS, drawn, logits, ours, pooled, splade
from tests.model.small_tokenizer import save_small_tokenizer

CLOSE = 1e-5
KERNELS = kernels.choose_kernels(CPU, torch.float32)
NTK = {"type": "ntk", "factor": 8.0}
# keys of the hub's config.json; the tests add sizes
HUB: dict[str, Any] = {
    "model_type": "new",
    "architectures": ["NewModel"],
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": None,
    "rope_theta": 160_000,
    "unpad_inputs": True,
    "use_memory_efficient_attention": True,
}
SMALL = HUB | bert.TINY_BERT
# what the hub's configs hold of sizes and angles (docs/models.md names the ids)
PUBLISHED: dict[str, dict[str, Any]] = {
    "gte-base-en-v1.5": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30528,
        "type_vocab_size": 0,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000,
    },
    "gte-large-en-v1.5": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "vocab_size": 30528,
        "type_vocab_size": 2,
        "max_position_embeddings": 8192,
        "rope_theta": 160_000,
        "rope_scaling": {"type": "ntk", "factor": 2.0},
    },
    "gte-multilingual-base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 250_048,
        "type_vocab_size": 1,
        "max_position_embeddings": 8192,
        "rope_theta": 20_000,
        "rope_scaling": NTK,
    },
}


def respelled(tensors: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """transformers' tensors under the names that the hub's code gives them, packed as there."""
    found = {name.removeprefix("gte."): tensor for name, tensor in tensors.items()}
    packed = {
        "attention.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
    }
    layers = {name.split(".")[1] for name in found if name.startswith("layers.")}
    made = {}
    for layer in sorted(layers):
        for whole, parts in packed.items():
            for kind in ("weight", "bias"):
                names = [f"layers.{layer}.{part}.{kind}" for part in parts]
                if names[0] in found:
                    rows = torch.cat([found.pop(name) for name in names])
                    made[f"layers.{layer}.{whole}.{kind}"] = rows
    renames = {
        "layers.": "encoder.layer.",
        "self_attn.o_proj": "attention.o_proj",
        "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln",
        "lm_head.layer_norm": "lm_head.norm",
    }
    named = {}
    for name, tensor in (found | made).items():
        for ours_, hubs in renames.items():
            name = name.replace(ours_, hubs)
        own = name.startswith(("embeddings.", "encoder.", "pooler."))
        named[prefix + name if own else name] = tensor.contiguous()
    return named


def written(folder: Path, model: PreTrainedModel, prefix: str = "", **keys: Any) -> Path:
    """A folder as the hub has it: the code's names, and its config."""
    folder.mkdir(exist_ok=True)
    tensors = {
        name: tensor for name, tensor in model.state_dict().items() if "decoder.weight" not in name
    }
    save_file(respelled(tensors, prefix), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SMALL | keys))
    save_small_tokenizer(folder)
    return folder


def load(folder: Path) -> Model:
    """A folder as we load it."""
    return checkpoint.load_checkpoint(folder, CPU, torch.float32, KERNELS)


@pytest.mark.parametrize("types", [0, 1, 3])
def test_the_hubs_tensors_are_read_as_transformers_reads_them(tmp_path: Path, types: int) -> None:
    """As "gte", by transformers' own conversion; as "new", which it cannot read, the same bits."""
    saved = theirs("gte", type_vocab_size=types)
    keys = {"type_vocab_size": types}
    as_gte = written(tmp_path / "gte", saved, model_type="gte", **keys)
    reference = transformers.GteModel.from_pretrained(as_gte, attn_implementation="eager").eval()
    model, other = load(as_gte), load(written(tmp_path / "new", saved, **keys))

    for length in LENGTHS:
        assert furthest(reference, model, "gte", "ids", length) <= CLOSE
        assert furthest(reference, other, "gte", "ids", length) <= CLOSE
    assert torch.equal(model.encoder.layers[3].up.weight(), other.encoder.layers[3].up.weight())


def test_the_names_of_transformers_modules_are_read_too(tmp_path: Path) -> None:
    """Three linears of queries, keys and values, gate and up apart."""
    reference = theirs("gte")
    folder = written(tmp_path, reference, model_type="gte")
    save_file(reference.state_dict(), folder / "model.safetensors", {"format": "pt"})
    model = load(folder)

    for length in LENGTHS:
        assert furthest(reference, model, "gte", "ids", length) <= CLOSE


def test_ntk_turns_as_transformers_with_the_same_rates(tmp_path: Path) -> None:
    """Whose name for a base 8 times as large, and every rate divided, is "linear"."""
    head = bert.TINY_BERT["hidden_size"] // bert.TINY_BERT["num_attention_heads"]
    same = {"rope_type": "linear", "rope_theta": 20.0 * 8, "factor": 8.0 ** (2 / head)}
    reference = theirs("gte", rope_parameters=same)
    model = load(written(tmp_path, reference, rope_scaling=NTK, rope_theta=20))

    for length in LENGTHS:
        assert furthest(reference, model, "gte", "ids", length) <= CLOSE


@pytest.mark.parametrize(("theta", "factor", "head"), [(20_000, 8.0, 64), (160_000, 2.0, 64)])
def test_ntk_divides_the_slowest_by_the_factor_and_others_by_less(
    theta: float, factor: float, head: int
) -> None:
    """In the source's own terms: lambda^(m + 1), of which lambda^(head / 2) is the factor."""
    plain, stretched = (
        rope.rotation_rates(head).double()
        for rope in (Rope(theta=theta), NtkRope(theta=theta, factor=factor))
    )
    steps = torch.arange(1, head // 2 + 1, dtype=torch.float64) * 2 / head

    torch.testing.assert_close(plain / stretched, factor**steps, rtol=1e-6, atol=0)


def test_ntk_is_as_exact_as_its_code() -> None:
    """To the bit, step by step as NTKScalingRotaryEmbedding makes them."""
    inverse = 1.0 / ((20_000 * 8.0) ** (torch.arange(0, 64, 2).float() / 64))

    assert torch.equal(
        NtkRope(theta=20_000.0, factor=8.0).rotation_rates(64), inverse / 8.0 ** (2 / 64)
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_configs_are_read(name: str) -> None:
    """With their sizes and angles; gates have no bias, all other linears do."""
    keys = PUBLISHED[name]

    config, _ = families.read_config_and_family(HUB | keys)

    assert (config.width, config.layers, config.heads) == (
        keys["hidden_size"],
        keys["num_hidden_layers"],
        keys["num_attention_heads"],
    )
    assert (config.max_tokens, config.types) == (8192, keys["type_vocab_size"])
    assert set(LINEAR_NAMES) - set(config.biases) == {"gate", "up"}
    theta, factor = float(keys["rope_theta"]), keys.get("rope_scaling", {}).get("factor")
    rope = NtkRope(theta=theta, factor=factor) if factor else Rope(theta=theta)
    assert set(config.ropes) == {rope}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another norm": ({"layer_norm_type": "rms_norm"}, "layer_norm_type 'rms_norm'"),
    "scores by length": ({"logn_attention_scale": True}, "logn_attention_scale True"),
    "three linears": ({"pack_qkv": False}, "pack_qkv False"),
    "a table": ({"position_embedding_type": "absolute"}, "position_embedding_type 'absolute'"),
    "mixed NTK": ({"rope_scaling": {**NTK, "mixed_b": 0.6}}, "mixed_b 0.6"),
    "nothing stretched": ({"rope_scaling": {**NTK, "factor": 1.0}}, "factor 1.0"),
    "no factor": ({"rope_scaling": {"type": "ntk"}}, "lacks 'factor'"),
    "a kind that its code lacks": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "rope_scaling {'type': 'linear', 'factor': 2.0}",
    ),
    "a name that its code lacks": (
        {"rope_parameters": {"rope_type": "default"}},
        "rope_parameters {'rope_type': 'default'}",
    ),
    "two names": (
        {"rope_scaling": NTK, "rope_parameters": {"rope_type": "default"}},
        "rope_parameters {'rope_type': 'default'}",
    ),
}


@pytest.mark.parametrize(("keys", "told"), REFUSED.values(), ids=list(REFUSED))
def test_what_its_code_computes_otherwise_is_refused(keys: dict[str, Any], told: str) -> None:
    """By the key and its value, in one line."""
    with pytest.raises(CheckpointError) as refused:
        families.read_config_and_family(SMALL | keys)

    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_an_ntk_of_transformers_spelling_is_refused() -> None:
    """It has no such kind."""
    with pytest.raises(CheckpointError, match="rope_type 'ntk'"):
        families.read_config_and_family(
            SMALL | {"model_type": "gte", "rope_parameters": {"rope_type": "ntk", "factor": 2.0}}
        )


def test_a_reranker_of_the_hub_scores_as_transformers(tmp_path: Path) -> None:
    """By its pooler and its classifier, whose names are the code's."""
    reference = theirs("gte", KINDS[0], num_labels=1)
    keys = {"architectures": ["NewForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    model = load(written(tmp_path, reference, "new.", **keys))

    assert model.tasks == ("encode", "classify", "rerank")
    assert isinstance(model.task_heads[0], Classifier)
    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        torch.testing.assert_close(found["logits"], logits(reference, ids), rtol=0, atol=CLOSE)


def test_a_sparse_model_of_the_hub_weighs_as_transformers(tmp_path: Path) -> None:
    """The head's norm has another name there; log(1 + log(1 + x)) as opensearch's v3 models."""
    reference = theirs("gte", KINDS[2])
    written(tmp_path, reference, "new.", architectures=["NewForMaskedLM"])
    splade(tmp_path, activation_function="log1p_relu")
    model = load(tmp_path)

    assert model.tasks == ("encode", "sparse") and isinstance(model.task_heads[0], Splade)
    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        expected = pooled(SpladePooling("max", "log1p_relu"), logits(reference, ids))
        assert found["indices"].tolist() == expected.nonzero()[:, 0].tolist()
        values = expected[found["indices"]]
        torch.testing.assert_close(found["values"], values, rtol=0, atol=CLOSE)


def test_its_code_has_the_configs_activation_before_the_vocabulary(tmp_path: Path) -> None:
    """Where transformers always has gelu."""
    reference = theirs("gte", KINDS[2], hidden_act="relu")
    keys = {"architectures": ["NewForMaskedLM"], "hidden_act": "relu"}
    for kind in ("new", "gte"):
        splade(written(tmp_path / kind, reference, "new.", model_type=kind, **keys))
    new, gte = (load(tmp_path / kind) for kind in ("new", "gte"))
    (ids,) = drawn((MOST,))

    expected = pooled_of(reference, ids)
    (own,), (other,) = ours(gte, [ids]), ours(new, [ids])

    torch.testing.assert_close(dense(own), expected, rtol=0, atol=CLOSE)
    assert float((dense(other) - expected).abs().max()) > 0.01


def pooled_of(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """log(1 + x) of the largest logit of each word."""
    return logits(model, ids).amax(0).relu().log1p()


def dense(found: dict[str, Tensor]) -> Tensor:
    """A sparse vector with its zeros."""
    vector = torch.zeros(VOCABULARY)
    vector[found["indices"]] = found["values"]
    return vector
