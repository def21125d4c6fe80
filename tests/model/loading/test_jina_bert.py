"""Jina's BERT with ALiBi (jina-embeddings-v2), whose own code never runs.

The reference is transformers' BertModel with Bloom's slopes in its attention mask and a gated
feed-forward block, as modeling_bert.py of jinaai/jina-bert-implementation writes them down
(JinaBertGLUMLP, rebuild_alibi_tensor).
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from model import families, kernels
from model.attention.alibi import Slopes
from model.attention.disentangled import MOST_CELLS, queries_per_pass
from model.errors import CheckpointError
from model.families import bert
from model.lessons import explain_layer
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import Classifier
from tests.model.loading.test_families import (
    BATCH,
    CPU,
    LENGTHS,
    MOST,
    furthest,
    inputs,
    moved,
)
from tests.model.small_tokenizer import save_small_tokenizer

CLOSE = 1e-5
KEYS = {"position_embedding_type": "alibi", "feed_forward_type": "geglu", "emb_pooler": "mean"}
LONG = 700  # tokens: two tiles of queries, the second not full
ACTIVATIONS = {"geglu": F.gelu, "reglu": F.relu}


class Gated(nn.Module):
    """The first half of the rows, activated, times the others; without biases."""

    def __init__(self, width: int, inner: int, kind: str) -> None:
        super().__init__()
        self.gated_layers, self.kind = nn.Linear(width, 2 * inner, bias=False), kind

    def forward(self, x: Tensor) -> Tensor:
        gate, other = self.gated_layers(x).chunk(2, -1)
        return ACTIVATIONS[self.kind](gate) * other


class JinaBert(transformers.BertModel):
    """transformers' BERT without positions, with slopes in its mask."""

    def forward(self, input_ids: Tensor | None = None, **given: Any) -> Any:
        keep = given.pop("attention_mask", None)
        like = given["inputs_embeds"][..., 0] if input_ids is None else input_ids
        tokens, heads = like.shape[1], self.config.num_attention_heads
        falls = build_alibi_tensor(torch.ones(1, tokens), heads, torch.float32)  # m_h j
        slopes = falls[:, :, 1:2] if tokens > 1 else falls
        place = torch.arange(tokens)
        mask = (-slopes * (place[:, None] - place).abs())[None]
        if keep is not None:  # nothing looks at padding
            mask = mask + (1 - keep[:, None, None].float()) * torch.finfo(mask.dtype).min
        return super().forward(input_ids, attention_mask=mask, **given)


def theirs(**choices: Any) -> JinaBert:
    """Random weights, every bias and norm included."""
    kind = choices.pop("feed_forward_type", "geglu")
    config = transformers.BertConfig(**bert.TINY_BERT | choices, attn_implementation="eager")
    torch.manual_seed(0)
    model = JinaBert(config).eval()
    for layer in model.encoder.layer:
        layer.intermediate = Gated(config.hidden_size, config.intermediate_size, kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.1 + norm)
        model.embeddings.position_embeddings.weight.zero_()
    return model


NAMES = {  # of transformers' BERT, and in the code
    "intermediate.gated_layers": "mlp.gated_layers",
    "attention.output.": "attention.OUTPUT.",  # is none of the next
    "output.dense": "mlp.wo",
    "output.LayerNorm": "mlp.layernorm",
    "attention.OUTPUT.": "attention.output.",
}


def renamed(name: str) -> str:
    """The code's name of what transformers' BERT names so."""
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def written(folder: Path, model: JinaBert, prefix: str = "", **keys: Any) -> Path:
    """A folder as the hub has it: the code's names, and its config."""
    folder.mkdir(exist_ok=True)
    tensors = {
        prefix + renamed(name): tensor.contiguous()
        for name, tensor in model.state_dict().items()
        if "position_embeddings" not in name
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = model.config.to_dict() | KEYS | {"architectures": ["JinaBertForMaskedLM"]} | keys
    (folder / "config.json").write_text(json.dumps(config))
    save_small_tokenizer(folder)
    return folder


def load(
    folder: Path, dtype: torch.dtype = torch.float32, way: kernels.Kernels | None = None
) -> Model:
    """A folder as we load it."""
    return checkpoint.load_checkpoint(folder, CPU, dtype, way or kernels.choose_kernels(CPU, dtype))


HEADS = {"three": {}, "four": {"num_attention_heads": 4}, "twelve": {"num_attention_heads": 12}}


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_it_computes_what_its_formulas_say(tmp_path: Path, heads: dict[str, int]) -> None:
    """All hidden states and maps: ids, embeddings, pairs; heads a power of two or not."""
    reference = theirs(**heads)
    ours = load(written(tmp_path, reference))

    assert ours.max_tokens == MOST and ours.tasks == ("encode",)
    for kind in ("ids", "embeddings", "pairs"):
        for length in LENGTHS if heads else (LENGTHS[-1],):
            assert furthest(reference, ours, "bert", kind, length) <= CLOSE
    assert moved(ours, [inputs("bert", "ids", n, reference)[0] for n in BATCH]) == 0


@pytest.mark.parametrize("way", [kernels.PLAIN, None], ids=["in tiles", "whole"])
def test_a_long_text_is_exact_and_has_the_same_bits_in_any_batch(
    tmp_path: Path, way: kernels.Kernels | None
) -> None:
    """A tile of queries at a time, or all in one call."""
    reference = theirs(max_position_embeddings=LONG)
    ours = load(written(tmp_path, reference), way=way)
    some = [inputs("bert", "ids", length, reference)[0] for length in (LONG, 9, LONG, 512, 513)]

    assert furthest(reference, ours, "bert", "ids", LONG) <= CLOSE
    assert moved(ours, some) == 0


def test_the_relu_of_its_gates_is_read_from_their_kind(tmp_path: Path) -> None:
    """hidden_act is nothing to its gates."""
    reference = theirs(feed_forward_type="reglu")
    ours = load(written(tmp_path, reference, feed_forward_type="reglu"))

    assert furthest(reference, ours, "bert", "ids", MOST) <= CLOSE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_half_precision_keeps_its_bits_in_any_batch(tmp_path: Path, dtype: torch.dtype) -> None:
    """And is about as close as its digits allow."""
    reference = theirs()
    whole, half = (load(written(tmp_path, reference), kind) for kind in (torch.float32, dtype))
    sequences = [inputs("bert", "ids", n, reference)[0] for n in BATCH]

    with torch.inference_mode():
        exact, cut = (m.encoder(m.encoder.pack(sequences[-1:])).last[:MOST] for m in (whole, half))

    assert float((exact - cut).square().mean().sqrt()) < 8 * torch.finfo(dtype).eps
    assert moved(half, sequences) == 0


def test_every_step_of_a_layer_shows_its_slopes(tmp_path: Path) -> None:
    """The scores of /v1/explain hold what distance takes from them."""
    reference = theirs()
    ours = load(written(tmp_path, reference))
    sequence, given = inputs("bert", "ids", MOST, reference)
    with torch.inference_mode():
        out = reference(**given, output_hidden_states=True, output_attentions=True)
        steps = explain_layer(ours.encoder, 1, out.hidden_states[1][0])

    assert float((steps["probabilities"] - out.attentions[1][0]).abs().max()) <= CLOSE


def test_a_reranker_of_it_scores_as_its_classifier_does(tmp_path: Path) -> None:
    """JinaBertForSequenceClassification, as jina-reranker-v1: the first token's, through tanh."""
    reference = theirs()
    random = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(1, 48, generator=random), torch.randn(1, generator=random)
    keys = {"architectures": ["JinaBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    written(tmp_path, reference, "bert.", **keys)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"classifier.weight": weight, "classifier.bias": bias}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ours = load(tmp_path)
    sequence, given = inputs("bert", "pairs", 23, reference)

    assert ours.tasks == ("encode", "classify", "rerank")
    (head,) = ours.task_heads
    assert isinstance(head, Classifier)
    with torch.inference_mode():
        expected = F.linear(reference(**given).pooler_output, weight, bias)
        packed = ours.encoder.pack([sequence])
        found = head(ours.encoder(packed).last[packed.rows(0)])
    torch.testing.assert_close(found["logits"], expected[0], rtol=0, atol=CLOSE)


REFUSED = {
    "no gates": ({"feed_forward_type": "original"}, "feed_forward_type 'original'"),
    "unsaid": ({"feed_forward_type": None}, "feed_forward_type None"),
    "decoder": ({"is_decoder": True}, "is_decoder True"),
    "code": (
        {
            "auto_map": {
                "AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"
            }
        },
        "norms of queries and keys",
    ),
}


@pytest.mark.parametrize(("keys", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_name(keys: dict[str, Any], said: str) -> None:
    """By the config alone."""
    config = {**bert.TINY_BERT, **KEYS, "model_type": "bert", "layer_norm_eps": 1e-12, **keys}

    with pytest.raises(CheckpointError, match=f"not supported: {said}"):
        families.read_config_and_family(config)


@pytest.mark.parametrize("kind", ["ernie", "roberta", "mpnet", "electra", "albert"])
def test_other_families_have_no_slopes(kind: str) -> None:
    """Refused by the key."""
    config = {
        **bert.TINY_BERT,
        **KEYS,
        "model_type": kind,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 1,
    }
    config |= {"embedding_size": 24} if kind == "albert" else {}

    with pytest.raises(CheckpointError, match="position_embedding_type 'alibi'"):
        families.read_config_and_family(config)


def test_tensors_of_another_layout_are_named(tmp_path: Path) -> None:
    """ALiBi's config with the feed-forward block of plain BERT."""
    model = transformers.BertModel(transformers.BertConfig(**bert.TINY_BERT))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | KEYS
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_small_tokenizer(tmp_path)

    with pytest.raises(CheckpointError, match=r"missing encoder\.layer\.0\.mlp\.gated_layers"):
        load(tmp_path)


def test_it_reads_the_longest_text_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8192 tokens: a line of slopes for each head, or as many cells as of 512 tokens."""
    reference = theirs(max_position_embeddings=8192, num_hidden_layers=1)
    ours = load(written(tmp_path, reference))
    ids = torch.randint(0, 97, (8192,), generator=torch.Generator().manual_seed(0)).tolist()
    backwards, made = Slopes.reversed_bias, list[Tensor]()

    def kept(*given: Any) -> Tensor:
        made.append(backwards(*given))
        return made[-1]

    monkeypatch.setattr(Slopes, "reversed_bias", kept)
    with torch.inference_mode():
        last = ours.encoder(ours.encoder.pack([Sequence(ids)])).last

    (line,) = made
    assert line.shape == (3, 8192, 8192)
    assert line.untyped_storage().nbytes() == 3 * (2 * 8192 - 1) * 4
    assert queries_per_pass(8192) * 8192 <= MOST_CELLS == 512**2
    assert last.shape == (8192, 48) and bool(last.isfinite().all())
