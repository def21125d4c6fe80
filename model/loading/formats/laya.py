"""Read a Laya checkpoint: an encoder, and a head that decides between a question's options.

rl_agent_config.json   lengths, layers of the head, temperatures, layout of the options
encoder/config.json    of the encoder
tokenizer/             tokenizer.json and its settings
model.safetensors      encoder.*, type_emb, head.* (torch's nn.TransformerEncoder), scorer.*; and
                       act_head.* and temperature, which no answer here depends on

Source: laya 0.4.15, laya/common.py (`DecisionModel`, `build_model`) and laya/agent.py (`Agent`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.decider import Decider, Marks
from model.decisions import KINDS, Temperatures
from model.encoder import Encoder
from model.errors import CheckpointError, refuse_unsupported
from model.kernels import Kernels, choose_kernels
from model.loading.assembly import FindTensor, build_encoder, expected_shapes
from model.loading.files import LAYA, TOKENIZER, WEIGHTS, read_object
from model.loading.formats.folder import FolderFormat, ReadingRules
from model.loading.modules import MODULES_FILE
from model.loading.task_heads import HeadSource
from model.loading.tensors import (
    Places,
    Shape,
    StoredTensor,
    check_tensors,
    expected_of_file,
    find_places,
    read_places,
)
from model.pooling import Dense, Norm, identity
from model.projection import Projection
from model.steady import ACTIVATIONS

ENCODER_PREFIX = "encoder."  # of the encoder's tensors
HEAD_SIZE = 64  # channels that a head of the layers has at least
NORM_EPS = 1e-5  # torch's default
SEQUENTIAL = "sequential"  # the only layout of options that is read
ACTION_WIDTH, ACTION_FEATURES = 256, 4  # of the unused act_head
TENSOR_NAMES = {  # our names -> the checkpoint's
    "types": "type_emb",
    "layers.{i}.qkv": "head.layers.{i}.self_attn.in_proj",
    "layers.{i}.output": "head.layers.{i}.self_attn.out_proj",
    "layers.{i}.attention_norm": "head.layers.{i}.norm1",
    "layers.{i}.up": "head.layers.{i}.linear1",
    "layers.{i}.down": "head.layers.{i}.linear2",
    "layers.{i}.feed_forward_norm": "head.layers.{i}.norm2",
}


@dataclass(frozen=True, slots=True)
class LayaSettings:
    """What rl_agent_config.json says.

    Args:
        window: most tokens of a sequence, and of its question with the options.
        layers: of the head.
        actions: outputs of the unused act_head.
    """

    window: tuple[int, int]
    layers: int
    actions: int
    temperatures: Temperatures


@dataclass(frozen=True)
class Laya(FolderFormat):
    """The format of a folder with a decision model."""

    @staticmethod
    def fits(folder: Path, raw: Mapping[str, Any]) -> bool:
        """Tell whether a folder with this config.json has this format."""
        return (folder / LAYA).is_file()

    @cached_property
    def settings(self) -> LayaSettings:
        """Read rl_agent_config.json.

        Raises:
            CheckpointError: a value is malformed or not supported.
        """
        return _read_settings(self.folder)

    def own_files(self) -> list[Path]:
        """Return the file of the settings."""
        return [self.folder / LAYA]

    def choose_max_tokens(self, stored: int, config: EncoderConfig) -> int:
        """Return the settings' most tokens of a sequence, at most the encoder's positions."""
        return min(self.settings.window[0], config.max_tokens)

    def select_encoder_tensors(
        self, tensors: Mapping[str, StoredTensor]
    ) -> Mapping[str, StoredTensor]:
        """Return the encoder's tensors by their own names."""
        return {
            name.removeprefix(ENCODER_PREFIX): one
            for name, one in tensors.items()
            if name.startswith(ENCODER_PREFIX)
        }

    def read_heads(self, parts: HeadSource, reading: ReadingRules) -> tuple[Decider]:
        """Return the head that decides, all float32.

        Raises:
            CheckpointError: a tensor is missing, extra, misshapen or not finite, the width has no
                heads, or the tokenizer lacks a token.
        """
        if (self.folder / MODULES_FILE).is_file():
            raise CheckpointError(f"{LAYA}: not supported: next to {MODULES_FILE}")
        settings, width = self.settings, parts.config.width
        config = _choose_layers(parts.config, settings.layers)
        places = _find_places(config)
        tensors = {
            name: one for name, one in parts.tensors.items() if not name.startswith(ENCODER_PREFIX)
        }
        shapes = _own_shapes(width, settings.actions)
        if config is not None:
            shapes |= expected_of_file(places, expected_shapes(config))
        check_tensors(tensors, shapes, WEIGHTS)

        def read(name: str) -> Tensor:
            """Read a tensor as float32 to the device."""
            return tensors[name].read().float().to(parts.device)

        decider = Decider(
            types=read("type_emb.weight"),
            layers=_build_layers(config, read_places(places, tensors), parts) if config else None,
            project=_build_scorer(read, width, parts.kernels),
            temperatures=settings.temperatures,
            window=(reading.max_tokens, settings.window[1]),
            marks=_find_marks(reading),
        )
        return (decider,)


def _read_settings(folder: Path) -> LayaSettings:
    """Return the settings of rl_agent_config.json; refuse those that are malformed."""
    stored = read_object(folder / LAYA)
    layout = stored.get("option_layout", SEQUENTIAL)
    refuse_unsupported(LAYA, None if layout == SEQUENTIAL else f"option_layout {layout!r}")
    by_kind = stored.get("temperature", [1.0] * len(KINDS))
    if not isinstance(by_kind, list) or len(by_kind) != len(KINDS):
        wanted = f"a list of {len(KINDS)}, for {', '.join(KINDS)}"
        raise CheckpointError(f"{LAYA}: temperature is not {wanted}: {by_kind!r}")
    by_options, costs = stored.get("temperature_by_options", {}), stored.get("act_costs", {})
    if not isinstance(by_options, Mapping):
        raise CheckpointError(f"{LAYA}: temperature_by_options is no object: {by_options!r}")
    if not isinstance(costs, Mapping | list):
        raise CheckpointError(f"{LAYA}: act_costs is no object: {costs!r}")
    if "head_layers" not in stored:
        raise CheckpointError(f"{LAYA} lacks head_layers")
    return LayaSettings(
        window=(_read_number(stored, "max_len", 512), _read_number(stored, "head_max_len", 192)),
        layers=_read_number(stored, "head_layers", least=0),
        actions=len(costs) + 1,
        temperatures=Temperatures(tuple(by_kind), by_options),
    )


def _read_number(stored: Mapping[str, Any], key: str, default: int = 0, least: int = 1) -> int:
    """Return a whole number of the settings; refuse one that is less, or none."""
    number = stored.get(key, default)
    if type(number) is not int or number < least:
        raise CheckpointError(f"{LAYA}: {key} is no whole number from {least} up: {number!r}")
    return number


def _choose_layers(encoder: EncoderConfig, layers: int) -> EncoderConfig | None:
    """Return the config of the head's layers, whose embeddings are the encoder's last states.

    Returns:
        Pre-norm layers without a last norm, in which every token sees every other and the kind of
        the question is the token type; None: there are none.

    Raises:
        CheckpointError: the heads do not divide the width.
    """
    width = encoder.width
    heads = max(1, width // HEAD_SIZE)
    if width % heads:
        raise CheckpointError(f"{LAYA}: not supported: {heads} heads do not divide width {width}")
    if not layers:
        return None
    return EncoderConfig(
        family="laya",
        vocabulary=1,
        width=width,
        layers=layers,
        heads=heads,
        feed_forward=4 * width,
        max_tokens=encoder.max_tokens,
        norm_eps=NORM_EPS,
        embedding_width=width,
        positions="relative",  # and no table of them: tokens have no places here
        types=len(KINDS),
        embedding_norm=False,
        pre_norm=True,
        first_norm=True,
        final_norm=False,
        activation="relu",
    )


def _find_places(config: EncoderConfig | None) -> Places:
    """Return where the file has the layers' tensors, by our names."""
    found = find_places(expected_shapes(config), TENSOR_NAMES) if config else {}
    # torch's attention holds the stacked projections itself
    return {
        ours: (name.replace("in_proj.", "in_proj_"), part) for ours, (name, part) in found.items()
    }


def _own_shapes(width: int, actions: int) -> dict[str, Shape]:
    """Return the shapes of the tensors of the head that are not of its layers."""
    return {
        "type_emb.weight": (len(KINDS), width),
        "scorer.0.weight": (width,),
        "scorer.0.bias": (width,),
        "scorer.1.weight": (width, width),
        "scorer.1.bias": (width,),
        "scorer.3.weight": (1, width),
        "scorer.3.bias": (1,),
        "act_head.0.weight": (ACTION_WIDTH, width + ACTION_FEATURES),
        "act_head.0.bias": (ACTION_WIDTH,),
        "act_head.2.weight": (actions, ACTION_WIDTH),
        "act_head.2.bias": (actions,),
        "temperature": (len(KINDS),),
    }


def _build_layers(config: EncoderConfig, stored: FindTensor, parts: HeadSource) -> Encoder:
    """Build the layers of the head."""
    kernels = parts.kernels
    if parts.device.type == "cuda":  # the encoder's may be for another dtype, or size of a head
        kernels = choose_kernels(parts.device, torch.float32, config.head_dim)

    def find(name: str) -> Tensor:
        """Return a tensor by our name; the table of words, which no token reads, has one row."""
        return torch.zeros(1, config.width) if name == "word.weight" else stored(name)

    return build_encoder(config, find, parts.device, torch.float32, kernels)


def _build_scorer(read: Callable[[str], Tensor], width: int, kernels: Kernels) -> Projection:
    """Build what maps an option's token to its logit: a norm, and two linears."""
    norm, first, last = (
        (read(f"scorer.{place}.weight"), read(f"scorer.{place}.bias")) for place in (0, 1, 3)
    )
    dense = Dense(kernels.linear(*first), ACTIVATIONS["gelu"], width, width * width)
    return Projection(
        (Norm(norm, NORM_EPS, width), dense, Dense(kernels.linear(*last), identity, 1, width))
    )


def _find_marks(reading: ReadingRules) -> Marks:
    """Return the special tokens of a decision; refuse a tokenizer that lacks one."""
    names = ("cls_token", "sep_token", "mask_token")
    texts = [reading.rules.special_token(name) for name in names]
    ids = [None if text is None else reading.tokenizer.id_of(text) for text in texts]
    if lacking := [name for name, id in zip(names, ids, strict=True) if id is None]:
        raise CheckpointError(f"{TOKENIZER} lacks {', '.join(lacking)}")
    cls, separator, mask = (id for id in ids if id is not None)
    return Marks(cls, separator, mask, texts[-1] or "", reading.tokenizer.side)
