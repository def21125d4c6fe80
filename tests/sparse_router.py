"""A SparseEncoder of sentence-transformers that looks queries up in a table."""

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import (
    Router,
    SparseStaticEmbedding,
    SpladePooling,
    Transformer,
)


def routed(masked: Path, folder: Path, **choices: Any) -> SparseEncoder:
    """Save one of random weights; gives it as it loads again.

    Args:
        masked: a folder of a masked language model with its tokenizer.
    """
    prompts = choices.pop("prompts", None)
    encoder = Transformer(str(masked), transformer_task="fill-mask")
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(len(encoder.tokenizer), generator=generator)
    weights[weights < 0.1] = 0  # tokens that say nothing
    router = Router.for_query_document(
        query_modules=[SparseStaticEmbedding(encoder.tokenizer, weights, frozen=True)],
        document_modules=[encoder, SpladePooling("max", "log1p_relu")],
        **choices,
    )
    model = SparseEncoder(modules=[router], prompts=prompts, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return SparseEncoder(str(folder), device="cpu")
