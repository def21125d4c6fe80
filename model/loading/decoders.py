"""What a config.json of a decoder means, of which only the token vectors are wanted.

As in configs.py: what the encoder would not compute exactly is refused by name.
"""

from model.config import EncoderConfig
from model.loading.configs import read_activation, read_sizes
from model.loading.ropes import Config, only, single_rope

PROJECTIONS = ("query", "key", "value", "output")
THETA_OF_QWEN3 = 10_000.0  # where its config is silent
HEAD_OF_QWEN3 = 128  # likewise


def qwen3(config: Config) -> EncoderConfig:
    """Read Qwen3: causal, of RMSNorms, with keys and values that several heads share."""
    only(config, use_sliding_window=False)
    everywhere = ["full_attention"] * config["num_hidden_layers"]
    only(config, **({} if config.get("layer_types") is None else {"layer_types": everywhere}))
    sizes = read_sizes(config, norm_eps="rms_norm_eps")
    return EncoderConfig(
        **sizes,
        embedding_width=sizes["width"],
        key_heads=config["num_key_value_heads"],
        head_size=config.get("head_dim", HEAD_OF_QWEN3),
        positions="rotary",
        embedding_norm=False,
        pre_norm=True,
        first_norm=True,
        head_norm=True,
        norm="rms",
        biases=PROJECTIONS if config.get("attention_bias", False) else (),
        norm_bias=False,
        activation=read_activation(config, "hidden_act", "silu"),
        gated=True,
        ropes=(single_rope(config, THETA_OF_QWEN3),) * sizes["layers"],
        causal=True,
    )
