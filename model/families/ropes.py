"""Rotary embeddings of a config.json, as transformers computes them.

What the encoder would not compute exactly is refused by name.
"""

import math
from collections.abc import Mapping

from model.attention.positions import LinearRope, Llama3Rope, ProportionalRope, Rope, YarnRope
from model.errors import CheckpointError
from model.families.fields import Config, read_number, refuse_other_values

EVERYWHERE, LOCAL = "full_attention", "sliding_attention"  # kinds of layer, where there are two
# keys that a dictionary of any rope_type may have, and those that each rope_type adds
COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
KEYS_BY_KIND = {  # by rope_type
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "proportional": {"factor"},
    "llama3": {
        *("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    },
    "yarn": {
        *("factor", "original_max_position_embeddings", "attention_factor", "beta_fast"),
        *("beta_slow", "mscale", "mscale_all_dim", "truncate"),
    },
}


def read_angles_of_width(config: Config, theta: float) -> Rope:
    """Return the rotary embedding of all layers; refuse heads that do not divide the width."""
    check_head_size(config)
    return read_single_rope(config, theta)


def check_head_size(config: Config) -> None:
    """Refuse a head_dim other than hidden_size / heads, which some families do not compute."""
    head_dim = config.get("head_dim")
    if head_dim is not None and head_dim * config["num_attention_heads"] != config["hidden_size"]:
        raise CheckpointError(f"not supported: head_dim {head_dim!r}")


def read_single_rope(config: Config, theta: float) -> Rope:
    """Return the rotary embedding of all layers, from rope_scaling or else rope_parameters."""
    settings = (
        read_dictionary(config, "rope_scaling") or read_dictionary(config, "rope_parameters") or {}
    )
    return read_rope(config, settings, config.get("rope_theta", theta))


def read_ropes(config: Config, settings: Config, thetas: Mapping[str, object]) -> dict[str, Rope]:
    """Return the rotary embedding by kind of layer.

    Args:
        settings: the dictionary that describes each, by kind.
        thetas: the base of each where its dictionary has none.
    """
    if others := settings.keys() - thetas.keys():
        named = ", ".join(sorted(others))
        raise CheckpointError(f"not supported: rope_parameters for other layer_types: {named}")
    ropes = {kind: read_dictionary(settings, kind) or {} for kind in thetas}
    for rope in ropes.values():
        refuse_other_values(rope, truncate=None)  # transformers does not look for it here
    return {kind: read_rope(config, ropes[kind], thetas[kind]) for kind in thetas}


def read_dictionary(config: Config, key: str) -> Config | None:
    """Return the dictionary under a key; None where there is none."""
    settings = config.get(key)
    if settings is not None and not isinstance(settings, Mapping):
        raise CheckpointError(f"not supported: {key} {settings!r}")
    return settings


def read_rope(config: Config, settings: Config, theta: object) -> Rope:
    """Return a rotary embedding as transformers computes it.

    Args:
        config: config.json.
        settings: the dictionary in it that describes the embedding.
        theta: its base, where the dictionary has none.
    """
    kind, share = _read_kind(settings), config.get("partial_rotary_factor")
    default = {"rope_theta": theta, "partial_rotary_factor": 1 if share is None else share}
    merged = {**default, **settings}
    base = read_number(merged, "rope_theta", above=1)
    if kind == "proportional":
        part = read_number(merged, "partial_rotary_factor", most=1)
        return ProportionalRope(
            theta=base, factor=read_number({"factor": 1, **merged}, "factor"), share=part
        )
    # for other kinds these families' code rotates all channels or fails
    refuse_other_values(merged, partial_rotary_factor=1)
    if kind == "linear":
        return LinearRope(theta=base, factor=read_number(merged, "factor"))
    if kind == "yarn":
        return _read_yarn(config, merged, base)
    if kind == "llama3":
        low, high = read_number(merged, "low_freq_factor"), read_number(merged, "high_freq_factor")
        read_number({"high_freq_factor": high}, "high_freq_factor", above=low)
        factor, trained = read_number(merged, "factor"), _read_trained_length(config, merged)
        return Llama3Rope(theta=base, factor=factor, trained=trained, low=low, high=high)
    if kind == "dynamic":  # stretches only what is longer than the table of positions
        read_number(merged, "factor")
    return Rope(theta=base)


def _read_kind(settings: Config) -> str:
    """Return the rope_type; refuse keys that it does not read."""
    kind = settings.get("rope_type", settings.get("type", "default"))
    if not isinstance(kind, str) or kind not in KEYS_BY_KIND:
        raise CheckpointError(
            f"not supported: rope_type {kind!r}; these are: {', '.join(KEYS_BY_KIND)}"
        )
    if settings.get("type", kind) != kind:
        both = f"rope_type {kind!r}, which transformers follows, and type {settings['type']!r}"
        raise CheckpointError(f"not supported: {both}; say which holds as rope_type")
    refuse_other_values(
        settings, **dict.fromkeys(settings.keys() - COMMON_KEYS - KEYS_BY_KIND[kind])
    )
    return kind


def _read_yarn(config: Config, merged: Config, theta: float) -> YarnRope:
    """Return YaRN's embedding; its amplitude follows from the factor where no key has it."""
    trained, whole = _read_trained_length(config, merged), merged.get("truncate", True)
    if merged["factor"] is None:
        merged = {**merged, "factor": config["max_position_embeddings"] / trained}
    if not isinstance(whole, bool):
        raise CheckpointError(f"not supported: truncate {whole!r}")
    keys = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    numbers = {key: read_number(merged, key) for key in keys if merged.get(key) is not None}
    factor = read_number(merged, "factor")
    amplitude = _yarn_amplitude(factor)
    if {"mscale", "mscale_all_dim"} <= numbers.keys():
        amplitude = _yarn_amplitude(factor, numbers["mscale"]) / _yarn_amplitude(
            factor, numbers["mscale_all_dim"]
        )
    return YarnRope(
        theta=theta,
        amplitude=numbers.get("attention_factor", amplitude),
        factor=factor,
        trained=trained,
        fast=numbers.get("beta_fast", 32.0),
        slow=numbers.get("beta_slow", 1.0),
        whole=whole,
    )


def _yarn_amplitude(factor: float, share: float = 1.0) -> float:
    """Return YaRN's factor of queries and keys, for positions stretched by `factor`."""
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


def _read_trained_length(config: Config, merged: Config) -> float:
    """Return the tokens of the longest sequence in training, before stretching."""
    key = "original_max_position_embeddings"
    trained = read_number({key: config["max_position_embeddings"], **merged}, key)
    if config.get(key) is not None:  # which of the two counts differs between families
        refuse_other_values(config, **{key: trained})
    return trained
