"""A checkpoint like BGE-M3, of random weights, and FlagEmbedding's formulas over transformers.

Source of the formulas: FlagEmbedding 1.4, finetune/embedder/encoder_only/m3/modeling.py and
inference/embedder/encoder_only/m3.py, whose names are kept here.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, XLMRobertaConfig, XLMRobertaModel

WIDTH, SIZE = 21, 13  # of a token's vector, and of one of many
POSITIONS = 83  # tokens of a sequence at most
MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
CORPUS = (
    "All is well. A dog ate the food, and slept. It was hungry! The dog barks in the evening.",
    "Why does it rain? The sky is grey and cold; the sun shines today, again and again.",
    "A horse eats grass; birds build nests. Who ate the food of the dog?",
)
TEXTS = (
    "Who ate the food of the dog?",
    "A dog ate the food, and then the dog slept: the food was the dog's.",
    "It rains.",
    "a",
    "\U0001f9ad and \U0001f9ad are unknown, </s> and <s> are special.",
    "the sky, the sun, the rain and the evening again and again and again",
)
MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))


class Made(NamedTuple):
    """What the reference makes of one text: (width,), by id, and (tokens - 1, size)."""

    dense: Tensor
    sparse: dict[int, float]
    colbert: Tensor


@dataclass(frozen=True)
class BgeM3:
    """A checkpoint as transformers and the formulas of FlagEmbedding run it.

    Args:
        linears: weight and bias by the file that has them.
    """

    folder: Path
    model: XLMRobertaModel
    tokenizer: Any
    linears: Mapping[str, tuple[Tensor, Tensor]]

    def ids(self, text: str) -> list[int]:
        """The ids of a text, special ones included."""
        found: list[int] = self.tokenizer(text, truncation=True, max_length=POSITIONS)["input_ids"]
        return found

    def encode(self, text: str) -> Made:
        """What it makes of a text."""
        return self.encode_ids(self.ids(text))

    @torch.inference_mode()
    def encode_ids(self, ids: list[int]) -> Made:
        """What it makes of ids, alone and so without padding."""
        given = torch.tensor([ids])
        mask = torch.ones_like(given)
        hidden = self.model(input_ids=given, attention_mask=mask).last_hidden_state
        dense = F.normalize(hidden[:, 0], dim=-1)[0]
        weights = torch.relu(F.linear(hidden, *self.linears["sparse_linear"]))[0, :, 0]
        colbert = F.linear(hidden[:, 1:], *self.linears["colbert_linear"])
        colbert = F.normalize(colbert * mask[:, 1:][:, :, None].float(), dim=-1)[0]
        return Made(dense, self._process_token_weights(weights, ids), colbert)

    def _process_token_weights(
        self, token_weights: Tensor, input_ids: list[int]
    ) -> dict[int, float]:
        special = self.tokenizer.special_tokens_map
        names = ("cls_token", "eos_token", "pad_token", "unk_token")
        unused = {self.tokenizer.convert_tokens_to_ids(special[n]) for n in names if n in special}
        result: dict[int, float] = {}
        for w, idx in zip(token_weights.tolist(), input_ids, strict=True):
            if idx not in unused and w > result.get(idx, 0):
                result[idx] = w
        return result

    def parts(self, query: str, document: str) -> dict[str, float]:
        """The scores that compute_score adds up, by our names."""
        q, p = self.encode(query), self.encode(document)
        best = torch.einsum("in,jn->ij", q.colbert, p.colbert).max(-1).values
        return {
            "dense": float(q.dense @ p.dense),
            "sparse": sum(w * p.sparse[i] for i, w in q.sparse.items() if i in p.sparse),
            "multi_vector": float(best.sum() / len(q.colbert)),
        }


def bge_m3(folder: Path, modules: bool = True, size: int = SIZE) -> BgeM3:
    """Make one, saved as `headlight convert` leaves it.

    Args:
        modules: whether with sentence-transformers' files, as on the hub; FlagEmbedding's own
            `save` writes none.
        size: of a vector of many.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = _tokenizer(folder)
    config = XLMRobertaConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        vocab_size=len(tokenizer),
        intermediate_size=29,
        max_position_embeddings=POSITIONS + 2,
        type_vocab_size=1,
        initializer_range=0.5,
        attn_implementation="eager",
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = XLMRobertaModel(config).eval()
    model.save_pretrained(folder)
    linears = {
        name: (torch.randn(outputs, WIDTH), torch.randn(outputs))
        for name, outputs in (("sparse_linear", 1), ("colbert_linear", size))
    }
    linears["sparse_linear"][0].mul_(0.2)  # weights as small as a trained one's,
    linears["sparse_linear"][1].fill_(0.4)  # which most tokens have, and not all
    for name, (weight, bias) in linears.items():
        save_file({"weight": weight, "bias": bias}, folder / f"{name}.safetensors")
    if modules:
        _write_modules(folder)
    return BgeM3(folder, model, tokenizer, linears)


def _tokenizer(folder: Path) -> Any:
    """Train a Unigram with XLM-RoBERTa's special tokens, and read it as transformers does."""
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=131, special_tokens=MARKS, unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(CORPUS, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    library.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": POSITIONS}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _write_modules(folder: Path) -> None:
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    pooling |= {"pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": POSITIONS}))
