"""Checkpoints with a head, of random weights, for tests that serve one."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import torch
import transformers
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
)

from service.files.weights import BUNDLED_MODEL, locate_model

MOST = 37  # rows of the position table
LONG = 8192  # of the reranker that reads long documents
SIZES = {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
SPLADE = {"pooling_strategy": "max", "activation_function": "relu"}
MODULES = (
    "sparse_encoder.modules.mlm_transformer.MLMTransformer",
    "sparse_encoder.modules.splade_pooling.SpladePooling",
)

ANIMALS = ("The dog barks", "A horse eats grass", "Birds build nests")
WEATHER = ("It is raining", "The sky is grey and cold", "The sun shines today")


def checkpoint(folder: Path, head: str, **choices: Any) -> PreTrainedModel:
    """A small BERT with a head and the bundled model's tokenizer, saved.

    Args:
        head: what transformers calls it, such as ForSequenceClassification.
    """
    tokenizer = AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder)
    config = BertConfig(
        **SIZES | choices,
        vocab_size=len(tokenizer),
        intermediate_size=23,
        max_position_embeddings=MOST,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, f"Bert{head}")(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if head == "ForMaskedLM":
        sparse(folder)
    return model


def embedder(folder: Path, pooling: str = "mean_tokens") -> None:
    """A small BERT, pooled and normalised by modules like the bundled model's, saved."""
    checkpoint(folder, "Model")
    shutil.copy(locate_model(BUNDLED_MODEL).folder / "modules.json", folder)
    how = {"word_embedding_dimension": SIZES["hidden_size"], f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(how))


def long_reranker(folder: Path) -> None:
    """A small cross-encoder of 8,192 tokens, of ModernBERT's family, saved."""
    tokenizer = AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder)
    tokenizer.model_max_length = LONG
    config = ModernBertConfig(
        **SIZES | {"hidden_size": 18},
        vocab_size=len(tokenizer),
        intermediate_size=23,
        max_position_embeddings=LONG,
        num_labels=1,
        initializer_range=0.5,
        classifier_bias=True,
        attn_implementation="eager",
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    torch.manual_seed(0)
    ModernBertForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def classifier(folder: Path) -> None:
    """The bundled encoder with a head that tells ANIMALS from WEATHER.

    Its weights are the difference of the mean first-token vectors of either's sentences.
    """
    bundled = locate_model(BUNDLED_MODEL).folder
    tokenizer = AutoTokenizer.from_pretrained(bundled)
    names = dict(enumerate(("animals", "weather")))
    model = BertForSequenceClassification.from_pretrained(bundled, id2label=names).eval()
    with torch.no_grad():
        means = [
            torch.stack(
                [model.bert(**tokenizer(text, return_tensors="pt"))[0][0, 0] for text in texts]
            ).mean(0)
            for texts in (ANIMALS, WEATHER)
        ]
        middle = (means[0] + means[1]) / 2
        scale = 0.1  # where tanh is nearly straight
        model.bert.pooler.dense.weight.copy_(torch.eye(len(middle)) * scale)
        model.bert.pooler.dense.bias.copy_(-middle * scale)
        model.classifier.weight.copy_(torch.stack([mean - middle for mean in means]))
        model.classifier.bias.zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def sparse(folder: Path) -> None:
    """The modules of a SparseEncoder next to a masked language model."""
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{module}"}
        for i, (path, module) in enumerate(zip(("", "1_SpladePooling"), MODULES, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(SPLADE))
