"""What a config.json of Jina's models means, whose own code never runs.

As in configs.py: what the encoder would not compute exactly is refused by name.
"""

from dataclasses import replace

from model.config import LINEARS, Activation, EncoderConfig
from model.errors import CheckpointError
from model.loading import configs, decoders
from model.loading.ropes import Config, only

CODE_OF_V3 = "xlm-roberta-flash-implementation"
V3, ROBERTA = "jina_embeddings_v3", "xlm-roberta"
FEED_FORWARDS: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
OF_CODE = "jina-bert-v2-qk-post-norm"  # whose layers have three norms more, under other names


def named(config: Config) -> Config:
    """Give Jina v3 the name that transformers knows it by; any other config is returned as it is.

    Its own code calls it XLM-RoBERTa, and its config.json on the hub may have no model_type.
    """
    kind = config.get("model_type", ROBERTA if CODE_OF_V3 in str(config.get("auto_map")) else None)
    own = config.get("position_embedding_type") == "rotary" and "rotary_emb_base" in config
    return {**config, "model_type": V3} if kind == ROBERTA and own else config


def v5(config: Config) -> EncoderConfig:
    """Read Jina Embeddings v5: EuroBERT (nano) or Qwen3 (small), by its config's own word."""
    return decoders.qwen3(config) if config.get("is_decoder", True) else decoders.llama(config)


def bert(config: Config) -> EncoderConfig:
    """Read BERT, or Jina's BERT (jina-embeddings-v2), which has its model_type and ALiBi."""
    if config.get("position_embedding_type") != "alibi":
        return configs.bert(config)
    only(config, is_decoder=False, add_cross_attention=False, embedding_size=config["hidden_size"])
    kind = config.get("feed_forward_type")
    if kind not in FEED_FORWARDS:
        known = ", ".join(FEED_FORWARDS)
        raise CheckpointError(f"not supported: feed_forward_type {kind!r}; these are: {known}")
    if any(OF_CODE in str(config.get(key)) for key in ("auto_map", "_name_or_path")):
        raise CheckpointError(f"not supported: norms of queries and keys ({OF_CODE})")
    plain = configs.bert({**config, "position_embedding_type": "absolute"})
    return replace(
        plain,
        positions="alibi",
        biases=tuple(name for name in LINEARS if name not in ("gate", "up")),
        activation=FEED_FORWARDS[kind],
        gated=True,
    )
