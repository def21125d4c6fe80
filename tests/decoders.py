"""Small decoders as sentence-transformers saves them: embedders, and a reranker of Qwen3's."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from torch import nn
from transformers import PreTrainedModel

from tests.model.text.test_tokenizer import gemma, qwen2

SENTENCES = Path(__file__).parent / "model" / "texts.txt"
VOCABULARY, MOST, WIDTH = 520, 400, 48
PROMPT = "Instruct: Given a question, find what answers it\nQuery:"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# as Qwen3-Reranker's users and sentence-transformers' tests have it
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    '<|im_start|>user\n<Instruct>: {{ messages | selectattr("role", "eq", "system") | '
    f'map(attribute="content") | first | default("{INSTRUCTION}") }}}}\n'
    '<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}'
    '\n<Document>: {{ messages | selectattr("role", "eq", "document") | '
    'map(attribute="content") | first }}<|im_end|>\n<|im_start|>assistant\n'
    "<think>\n\n</think>\n\n\n"
)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "intermediate_size": 80,
    "max_position_embeddings": MOST,
}
MARKS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
YES, NO = 101, 77  # tokens of the reranker


def embedder(plain: Path, folder: Path) -> Path:
    """Last token, a prompt for queries, and a template that texts go round.

    Args:
        plain: a folder for what transformers writes of it.
    """
    _written(transformers.Qwen3Model, plain)
    library = qwen2(_sentences())
    library.save(str(plain / "tokenizer.json"))
    said = {
        "tokenizer_class": "Qwen2Tokenizer",
        "padding_side": "left",
        "model_max_length": 131072,
        "add_prefix_space": False,
    }
    (plain / "tokenizer_config.json").write_text(json.dumps(said))
    modules = [Transformer(str(plain)), Pooling(WIDTH, pooling_mode="lasttoken"), Normalize()]
    made = SentenceTransformer(modules=modules, device="cpu", prompts={"query": PROMPT})
    made.save(str(folder))
    path = folder / "tokenizer_config.json"
    template = {"chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **said, **template}))
    return folder


def embedding_gemma(plain: Path, folder: Path) -> Path:
    """The mean, two Dense layers, prompts that say what a text is for."""
    torch.manual_seed(0)
    sizes = transformers.Gemma3TextConfig(
        **SIZES,
        query_pre_attn_scalar=11,
        sliding_window=30,
        layer_types=["sliding_attention", "full_attention"] * 2,
        use_bidirectional_attention=True,
    )
    _save(transformers.Gemma3TextModel(sizes), plain, norms=0)
    library = gemma(_sentences())
    library.save(str(plain / "tokenizer.json"))
    said = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True}
    (plain / "tokenizer_config.json").write_text(json.dumps(said))
    whole = nn.Identity()
    modules = [
        Transformer(str(plain)),
        Pooling(WIDTH, pooling_mode="mean"),
        Dense(WIDTH, 70, bias=False, activation_function=whole),
        Dense(70, WIDTH, bias=False, activation_function=whole),
        Normalize(),
    ]
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(str(folder))
    return folder


def language_model(folder: Path) -> Path:
    """A folder of transformers', with the template of a reranker."""
    _written(transformers.Qwen3ForCausalLM, folder)
    library = qwen2([*_sentences(), TEMPLATE, "yes no"])
    library.post_processor = None
    library.add_special_tokens(MARKS)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def reranker(plain: Path, folder: Path, yes: int = YES, no: int | None = NO, **how: Any) -> Path:
    """A CrossEncoder of that model.

    Args:
        plain: as `language_model` makes it.
        how: other arguments of the CrossEncoder.
    """
    transformer = Transformer(str(plain), transformer_task="text-generation")
    score = LogitScore(true_token_id=yes, false_token_id=no)
    own = {"prompts": {"query": "Find what answers"}, "default_prompt_name": None} | how
    CrossEncoder(modules=[transformer, score], device="cpu", **own).save(str(folder))
    return folder


def _written(kind: type[PreTrainedModel], folder: Path) -> None:
    """Save a model of Qwen3's."""
    torch.manual_seed(0)
    _save(kind(transformers.Qwen3Config(**SIZES, tie_word_embeddings=True)), folder, norms=1)


def _save(model: PreTrainedModel, folder: Path, norms: float) -> None:
    """Save a model of random weights, those of norms around a number."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.1 + norm * norms)
    model.eval().save_pretrained(folder)


def _sentences() -> list[str]:
    return SENTENCES.read_text("utf-8").splitlines()[:60]
