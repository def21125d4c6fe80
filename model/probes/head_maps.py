"""Attention maps of the layers of a decision model's head, which read the encoder's last states."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import ClassVar

from model.config import EncoderConfig
from model.decider import Decider
from model.encoder import Encoded, Encoder
from model.maps import price
from model.maps.forms import show
from model.packing import Sequence
from model.probes.maps import Maps
from model.probes.probe import Made


@dataclass(frozen=True, slots=True, eq=False)
class HeadMaps(Maps):
    """Makes "heads", as Maps does, of the head's layers, counted from 0.

    Args:
        head: with the question's kind.
    """

    name: ClassVar = "head_attention"
    head: Decider

    @property
    def traces(self) -> Collection[int]:
        return ()

    @property
    def price_key(self) -> Hashable:
        return "head", price.price_key(self.selection)

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Made:
        own = self.head.run_layers(encoded.last[rows], frozenset(self.selection.heads))
        return {"heads": show(own.traces, own.packed.rows(0), self.selection).heads}

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        layers = self.head.count_flops(tokens)
        return layers + Maps.flops(self, self._own_config(config), tokens)

    def cost(self, config: EncoderConfig, tokens: int) -> float:
        layers = self.head.count_flops(tokens)
        return layers + Maps.cost(self, self._own_config(config), tokens)

    def _own_config(self, config: EncoderConfig) -> EncoderConfig:
        """Return the config of the head's layers, in place of the encoder's."""
        return config if self.head.layers is None else self.head.layers.config
