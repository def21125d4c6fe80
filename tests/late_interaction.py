"""Checkpoints of many vectors, of random weights, and PyLate's formulas over transformers."""

import json
import os
import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, BertConfig, BertModel

from service.files.weights import BUNDLED_MODEL, locate_model
from tests.model.small_tokenizer import few_words

POSITIONS, QUERY, DOCUMENT = 37, 13, 19  # tokens
WIDTH, SIZES = 15, (11, 7)
CHOICES: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": QUERY,
    "document_length": DOCUMENT,
    "attend_to_expansion_tokens": False,
    "do_query_expansion": True,
    "skiplist_words": list(string.punctuation),
}
METADATA = {"query_maxlen": QUERY, "doc_maxlen": DOCUMENT, "dim": SIZES[1]}

Affine = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Late:
    """A checkpoint as transformers and the formulas of PyLate run it.

    Args:
        layers: weight and bias of each Dense; residual: what each adds of its input.
    """

    folder: Path
    model: BertModel
    tokenizer: Any
    layers: list[Affine]
    choices: dict[str, Any] = field(default_factory=lambda: dict(CHOICES))
    residual: Tensor | None = None

    def tokens(self, text: str, side: str) -> dict[str, Tensor]:
        """PyLate's `tokenize` of one text."""
        query, choices = side == "query", self.choices
        most = choices[f"{side}_length"]
        self.tokenizer.pad_token_id = self.tokenizer.mask_token_id
        expand = query and choices["do_query_expansion"]
        made = self.tokenizer(
            [text],
            truncation="longest_first",
            max_length=most - 1,
            padding="max_length" if expand else False,
            return_tensors="pt",
        )
        marker = self.tokenizer.convert_tokens_to_ids(choices[f"{side}_prefix"])
        put = {"input_ids": marker, "attention_mask": 1, "token_type_ids": 0}
        framed = {
            name: torch.cat([made[name][:, :1], torch.tensor([[value]]), made[name][:, 1:]], 1)
            for name, value in put.items()
        }
        if query and choices["attend_to_expansion_tokens"]:
            framed["attention_mask"].fill_(1)
        return framed

    @torch.inference_mode()
    def encode(self, text: str, side: str) -> tuple[Tensor, list[int]]:
        """PyLate's `encode` of one text: its vectors, (kept, size), and the tokens kept."""
        tokens = self.tokens(text, side)
        x = self.model(**tokens).last_hidden_state[0]
        for index, (weight, bias) in enumerate(self.layers):
            made = F.linear(x, weight, bias)
            if index == 0 and self.residual is not None:
                made = made + F.linear(x, self.residual)
            x = made
        kept = torch.ones(len(x), dtype=torch.bool)
        if side == "document":
            words = self.choices["skiplist_words"]
            skipped = torch.tensor(self.tokenizer.convert_tokens_to_ids(words), dtype=torch.long)
            kept = ~torch.isin(tokens["input_ids"][0], skipped)
        return F.normalize(x[kept], dim=1), kept.nonzero()[:, 0].tolist()


def pylate(folder: Path, residual: bool = False, **choices: Any) -> Late:
    """A checkpoint as PyLate saves it, of two Dense layers, the first with a bias."""
    model, tokenizer = _encoder(folder, ("[Q] ", "[D] "))
    inner, size = SIZES
    layers: list[Affine] = [(torch.randn(inner, WIDTH), torch.randn(inner))]
    layers.append((torch.randn(size, inner), None))
    own = torch.randn(inner, WIDTH) if residual else None
    _modules(folder, layers, own)
    _write(folder / "sentence_bert_config.json", max_seq_length=QUERY - 1, do_lower_case=False)
    own_choices = {**CHOICES, **choices}
    _write(folder / "config_sentence_transformers.json", model_type="ColBERT", **own_choices)
    return Late(folder, model, tokenizer, layers, own_choices, own)


def stanford(folder: Path, **metadata: Any) -> Late:
    """A checkpoint as Stanford's ColBERT saves it."""
    model, tokenizer = _encoder(folder, ())
    weight = torch.randn(SIZES[1], WIDTH)
    tensors = {f"bert.{name}": tensor for name, tensor in model.state_dict().items()}
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file({**held, "linear.weight": weight}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    _write(folder / "config.json", **config | {"architectures": ["HF_ColBERT"]})
    own = {**METADATA, **metadata}
    _write(folder / "artifact.metadata", **own)
    choices = CHOICES | {
        "query_prefix": "[unused0]",
        "document_prefix": "[unused1]",
        "attend_to_expansion_tokens": own.get("attend_to_mask_tokens", False),
        "skiplist_words": CHOICES["skiplist_words"] if own.get("mask_punctuation", True) else [],
    }
    return Late(folder, model, tokenizer, [(weight, None)], choices)


def bundled(folder: Path) -> Late:
    """The bundled encoder's own token vectors, in PyLate's files; not trained for this."""
    source = locate_model(BUNDLED_MODEL).folder
    tokenizer, model = AutoTokenizer.from_pretrained(source), BertModel.from_pretrained(source)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    layers: list[Affine] = [(torch.eye(model.config.hidden_size), None)]
    markers = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    choices = {**CHOICES, **markers, "query_length": 32, "document_length": 180}
    _modules(folder, layers, None)
    _write(folder / "config_sentence_transformers.json", **choices)
    return Late(folder, model.eval(), tokenizer, layers, choices)


def _modules(folder: Path, layers: list[Affine], own: Tensor | None) -> None:
    """PyLate's Dense modules behind a Transformer.

    Args:
        own: what the first adds of its input.
    """
    modules = ["sentence_transformers.models.Transformer"]
    for place, (weight, bias) in enumerate(layers):
        (folder / f"{place + 1}_Dense").mkdir()
        of_first = own if place == 0 else None
        tensors = {"linear.weight": weight, "linear.bias": bias, "residual.weight": of_first}
        held = {name: one for name, one in tensors.items() if one is not None}
        save_file(held, folder / f"{place + 1}_Dense" / "model.safetensors")
        _write(
            folder / f"{place + 1}_Dense" / "config.json",
            in_features=weight.shape[1],
            out_features=len(weight),
            bias=bias is not None,
            activation_function="torch.nn.modules.linear.Identity",
            use_residual=of_first is not None,
        )
        modules.append("pylate.models.Dense.Dense")
    rows = [
        {"idx": i, "name": str(i), "path": f"{i}_Dense" if i else "", "type": kind}
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))


def _encoder(folder: Path, markers: tuple[str, ...]) -> tuple[BertModel, Any]:
    """A small BERT with a tokenizer of few words and these markers, saved."""
    folder.mkdir(exist_ok=True)
    tokenizer = few_words(12000)  # "noon" among them
    tokenizer.add_tokens(list(markers))
    config = BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        vocab_size=len(tokenizer),
        intermediate_size=23,
        max_position_embeddings=POSITIONS,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def _write(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(content))
