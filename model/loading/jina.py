"""What a config.json of Jina's models means, whose own code never runs.

As in configs.py: what the encoder would not compute exactly is refused by name.
"""

from dataclasses import replace

from model.config import LINEARS, Activation, EncoderConfig
from model.errors import CheckpointError
from model.loading import configs
from model.loading.ropes import Config, only

FEED_FORWARDS: dict[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
OF_CODE = "jina-bert-v2-qk-post-norm"  # whose layers have three norms more, under other names


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
