"""Small Laya checkpoints of random weights, which the laya library loads too."""

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import torch
from laya import Agent
from laya.common import DecisionModel
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import AutoModel, BertConfig, ModernBertConfig, PreTrainedTokenizerFast

from tests.model.small_tokenizer import few_words

Kind = Literal["modernbert", "mmbert", "bert"]  # of the encoder and its tokenizer
KINDS = get_args(Kind)
LAYA = "rl_agent_config.json"
WIDTH, HEADS, POSITIONS = 84, 6, 2048
CORPUS = (
    "The refund was refused, and the customer is angry. It is urgent! Answer him today.",
    "Does the message ask for money back? Is the parcel lost, late, broken or on its way?",
    "choice question: which team answers it; score question: how urgent; noul question: is it so",
    "level 0: not at all, level 1: soon, level 2: now; yes, the statement holds; false: no",
    '{"role": "user", "content": "Where is my parcel?"}, ["a", "b"], true, null, 1.5',
    "Stra\u00dfe, caf\u00e9, na\u00efve, \u6f22\u5b57, \u0434\u0430",
)


def make_laya(
    folder: Path,
    *,
    head_layers: int = 2,
    seed: int = 0,
    kind: Kind = "modernbert",
    width: int = WIDTH,
    settings: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Path:
    """Make one with weights drawn by the seed; return its folder.

    Args:
        width: of the encoder, a multiple of its heads.
        settings: what rl_agent_config.json says otherwise.
        sizes: other values of the encoder's config.json.
    """
    tokenizer = {"modernbert": _byte_tokenizer, "mmbert": _piece_tokenizer, "bert": few_words}[
        kind
    ]()
    config = _make_config(kind, tokenizer, hidden_size=width, **sizes)
    stored = {
        "encoder": kind,
        "max_len": 512,
        "head_max_len": 192,
        "head_layers": head_layers,
        "act_costs": {"ask": 0.1, "wait": 0.2},
        "temperature": [1.25, 0.75, 1.5],
        "temperature_by_options": {"choice:3-5": 2.0, "choice:11+": 0.1},
        **(settings or {}),
    }
    torch.manual_seed(seed)
    model = DecisionModel(AutoModel.from_config(config), head_layers, len(stored["act_costs"]) + 1)
    _draw(model, torch.Generator().manual_seed(seed))
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder / "tokenizer")
    weights = {name: one.contiguous() for name, one in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    (folder / LAYA).write_text(json.dumps(stored))
    return folder


def open_library(folder: Path) -> Agent:
    """Load a copy in the laya library, which writes into the folder that it loads."""
    copy = folder.with_name(f"{folder.name} of the library")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    with warnings.catch_warnings():  # it says so of a temperature that it clamps
        warnings.filterwarnings("ignore", "laya: this checkpoint ships", RuntimeWarning)
        return Agent(str(copy), device="cpu")


def _make_config(kind: Kind, tokenizer: Any, **sizes: Any) -> Any:
    """Return an encoder's config; every size is one that no other axis has."""
    known = {
        "vocab_size": len(tokenizer),
        "num_hidden_layers": 3,
        "num_attention_heads": HEADS,
        "intermediate_size": 61,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": tokenizer.pad_token_id,
        **sizes,
    }
    if kind == "bert":
        return BertConfig(**known)
    ends = {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    return ModernBertConfig(
        **{"local_attention": 16, **known},
        **ends,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )


def _draw(model: torch.nn.Module, random: torch.Generator) -> None:
    """Draw all weights, biases and norms too, so that none is without effect."""
    with torch.no_grad():
        for name, one in model.named_parameters():
            drawn = torch.randn(one.shape, generator=random)
            if one.ndim == 2:
                drawn *= 1.0 if "emb" in name else one.shape[1] ** -0.5
            else:
                drawn = drawn * 0.2 + ("norm" in name.lower() or name == "scorer.0.weight")
            one.copy_(drawn)


def _byte_tokenizer() -> Any:
    """Train a BPE of bytes with BERT's special tokens, as ModernBERT's."""
    library = Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    _train(library, marks, pre_tokenizers.ByteLevel.alphabet())
    library.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    return _finish(library, marks)


def _piece_tokenizer() -> Any:
    """Train a BPE of pieces that falls back on bytes, with Gemma's special tokens, as mmBERT's."""
    library = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence(steps)
    marks = ["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"]
    _train(library, [*marks, *(f"<0x{byte:02X}>" for byte in range(256))], [])
    return _finish(library, marks, extra_special_tokens=["<start_of_turn>"])


def _train(library: Tokenizer, special: list[str], alphabet: list[str]) -> None:
    trainer = BpeTrainer(
        vocab_size=len(special) + len(alphabet) + 211,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)


def _finish(library: Tokenizer, marks: list[str], **more: Any) -> Any:
    """Give it the frame of a text, and return it as transformers has it."""
    pad, unknown, first, last, mask = marks
    library.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(one, library.token_to_id(one)) for one in (first, last)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        pad_token=pad,
        unk_token=unknown,
        cls_token=first,
        sep_token=last,
        mask_token=mask,
        **more,
    )
