"""What a config.json says of rotary angles, as transformers computes them.

What the encoder would not compute exactly is refused by name.
"""

import math
from collections.abc import Mapping

from model.errors import CheckpointError
from model.families.fields import Config, read_number, refuse_other_values
from model.positions import LinearRope, Llama3Rope, ProportionalRope, Rope, YarnRope

EVERYWHERE, LOCAL = "full_attention", "sliding_attention"  # kinds of layer, where there are two
# what every kind of rotary angles may hold, and what else each kind reads
COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
KEYS_BY_KIND = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "proportional": {"factor"},
    "llama3": {
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    },
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def read_angles_of_width(config: Config, theta: float) -> Rope:
    """Read the rotary angles of all layers, of heads that divide the width."""
    check_head_size(config)
    return read_single_rope(config, theta)


def check_head_size(config: Config) -> None:
    """Refuse heads of another size, which some families' code would not compute."""
    head = config.get("head_dim")
    if head is not None and head * config["num_attention_heads"] != config["hidden_size"]:
        raise CheckpointError(f"not supported: head_dim {head!r}")


def read_single_rope(config: Config, theta: float) -> Rope:
    """Read the rotary angles of all layers in transformers' spelling: the older name wins."""
    stated = (
        read_dictionary(config, "rope_scaling") or read_dictionary(config, "rope_parameters") or {}
    )
    return read_rope(config, stated, config.get("rope_theta", theta))


def read_dictionary(config: Config, key: str) -> Config | None:
    """Return the dictionary under a key; None where there is none."""
    stated = config.get(key)
    if stated is not None and not isinstance(stated, Mapping):
        raise CheckpointError(f"not supported: {key} {stated!r}")
    return stated


def read_rope(config: Config, stated: Config, theta: object) -> Rope:
    """Read rotary angles as transformers computes them.

    Args:
        stated: the dictionary that describes them.
        theta: their base, where it gives none.
    """
    kind, share = _read_kind(stated), config.get("partial_rotary_factor")
    default = {"rope_theta": theta, "partial_rotary_factor": 1 if share is None else share}
    given = {**default, **stated}
    base = read_number(given, "rope_theta", above=1)
    if kind == "proportional":
        part = read_number(given, "partial_rotary_factor", most=1)
        return ProportionalRope(
            theta=base, factor=read_number({"factor": 1, **given}, "factor"), share=part
        )
    refuse_other_values(
        given, partial_rotary_factor=1
    )  # of other kinds these families turn all channels or fail
    if kind == "linear":
        return LinearRope(theta=base, factor=read_number(given, "factor"))
    if kind == "yarn":
        return _read_yarn(config, given, base)
    if kind == "llama3":
        low, high = read_number(given, "low_freq_factor"), read_number(given, "high_freq_factor")
        read_number({"high_freq_factor": high}, "high_freq_factor", above=low)
        factor, trained = read_number(given, "factor"), _read_trained_length(config, given)
        return Llama3Rope(theta=base, factor=factor, trained=trained, low=low, high=high)
    if kind == "dynamic":  # stretches only what is longer than the table of positions
        read_number(given, "factor")
    return Rope(theta=base)


def _read_kind(stated: Config) -> str:
    """Return the kind of the angles; refuse keys that it would not read."""
    kind = stated.get("rope_type", stated.get("type", "default"))
    if not isinstance(kind, str) or kind not in KEYS_BY_KIND:
        raise CheckpointError(
            f"not supported: rope_type {kind!r}; these are: {', '.join(KEYS_BY_KIND)}"
        )
    if stated.get("type", kind) != kind:
        both = f"rope_type {kind!r}, which transformers follows, and type {stated['type']!r}"
        raise CheckpointError(f"not supported: {both}; say which holds as rope_type")
    refuse_other_values(stated, **dict.fromkeys(stated.keys() - COMMON_KEYS - KEYS_BY_KIND[kind]))
    return kind


def _read_yarn(config: Config, given: Config, theta: float) -> YarnRope:
    """Read YaRN's angles; their amplitude follows from the factor where it is not given."""
    trained, whole = _read_trained_length(config, given), given.get("truncate", True)
    if given["factor"] is None:
        given = {**given, "factor": config["max_position_embeddings"] / trained}
    if not isinstance(whole, bool):
        raise CheckpointError(f"not supported: truncate {whole!r}")
    keys = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    some = {key: read_number(given, key) for key in keys if given.get(key) is not None}
    factor = read_number(given, "factor")
    amplitude = _yarn_amplitude(factor)
    if {"mscale", "mscale_all_dim"} <= some.keys():
        amplitude = _yarn_amplitude(factor, some["mscale"]) / _yarn_amplitude(
            factor, some["mscale_all_dim"]
        )
    return YarnRope(
        theta=theta,
        amplitude=some.get("attention_factor", amplitude),
        factor=factor,
        trained=trained,
        fast=some.get("beta_fast", 32.0),
        slow=some.get("beta_slow", 1.0),
        whole=whole,
    )


def _yarn_amplitude(factor: float, share: float = 1.0) -> float:
    """Return what YaRN multiplies queries and keys by when a factor stretches positions."""
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


def _read_trained_length(config: Config, given: Config) -> float:
    """Return the tokens of the longest sequence before stretching."""
    key = "original_max_position_embeddings"
    trained = read_number({key: config["max_position_embeddings"], **given}, key)
    if config.get(key) is not None:  # which of the two counts differs between families
        refuse_other_values(config, **{key: trained})
    return trained
