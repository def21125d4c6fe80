"""Attention maps, as the pass used them, in one of the forms of model/maps/forms.py."""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace
from typing import ClassVar

from model.config import EncoderConfig
from model.encoder import Encoded, Encoder
from model.maps import price
from model.maps.forms import Selection, show
from model.packing import Sequence
from model.probes.probe import FLOAT_BYTES, Made, Probe, Sizes


@dataclass(frozen=True, slots=True, eq=False)
class Maps(Probe):
    """Makes "heads", tensors by layer and name, and "whole", those of all heads; see forms.Shown.

    Args:
        selection: which maps, and in which form.
    """

    name: ClassVar = "attention"
    one_core: ClassVar = False
    selection: Selection

    @property
    def traces(self) -> Collection[int]:
        return self.selection.heads

    @property
    def price_key(self) -> Hashable:
        return price.price_key(self.selection)

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Made:
        traces = {  # a batch of several adapters has weights of them all
            layer: replace(encoded.traces[layer], attention=encoder.layers[layer].attention)
            for layer in self.selection.heads
        }
        shown = show(traces, rows, self.selection)
        return {"heads": shown.heads, "whole": shown.whole}

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        return price.count_product_flops(self.selection, config)

    def cost(self, config: EncoderConfig, tokens: int) -> float:
        return price.estimate_flops(self.selection, config)

    def bytes(self, config: EncoderConfig, tokens: int, number: int = FLOAT_BYTES) -> Sizes:
        return {"attention": price.answer_bytes(self.selection)}

    def scratch_bytes(self, config: EncoderConfig, tokens: int) -> int:
        return price.scratch_bytes(self.selection)
