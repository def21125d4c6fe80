"""What the options' mask tokens attend to: rows of maps, of the encoder's layers and the head's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from model.decider import Decider
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.probes import HeadMaps, Maps
from service.pipeline.find.resolver import Resolver
from service.questions.decide import MarkerRows
from service.shapes.answer import Array
from service.shapes.work import Work
from service.tables.refusals import Refused

ByLayer = dict[int, tuple[int, ...]]  # heads of each layer, both counted from 0


class MarkRows:
    """The layers whose rows a request shows, numbered through the encoder's and the head's.

    Raises:
        Refused: there is no such layer.
    """

    def __init__(self, asked: MarkerRows, resolver: Resolver) -> None:
        config, heads_of = resolver.model.config, resolver.model.task_heads
        head = next(head for head in heads_of if isinstance(head, Decider))
        own = head.layers.config if head.layers else None
        self._below, self._half = config.layers, asked.dtype == "float16"
        counts = [config.heads] * config.layers + ([own.heads] * own.layers if own else [])
        every, chosen = len(counts), list[int]()
        for number in range(every) if asked.layers == "all" else asked.layers:
            if not -every <= number < every:
                detail = f"layer {number} is none of {every}, those of encoder and head together"
                raise Refused.at(
                    "index_out_of_range", "attention", "layers", detail=detail, limit=every
                )
            chosen.append(number % every)
        heads = {layer: tuple(range(counts[layer])) for layer in sorted({*chosen})}
        self._encoder: ByLayer = {i: of for i, of in heads.items() if i < config.layers}
        self._head: ByLayer = {i - config.layers: of for i, of in heads.items() if i >= self._below}

    @property
    def layers(self) -> int:
        """Return how many layers are shown."""
        return len(self._encoder) + len(self._head)

    def ask(self, work: Work) -> None:
        """Let a work's lane make the rows of its options' marks."""
        (head,) = work.outputs.task_heads
        if not isinstance(head, Decider):
            raise RuntimeError("a question without its head: this is a bug")
        units, rows = divide_into_units(len(work)), tuple(head.markers)

        def select(heads: ByLayer) -> Selection:
            """Return the selection of the marks' rows of these heads."""
            return Selection(heads, units, "rows", rows=rows, half=self._half)

        if self._encoder:
            work.outputs = work.outputs.asking(Maps(select(self._encoder)))
        if self._head:
            work.outputs = work.outputs.asking(HeadMaps(select(self._head), head))

    def read(self, work: Work) -> Mapping[int, Array]:
        """Return the rows by layer, (heads, options, tokens)."""
        made, rows = work.result.made, dict[int, Array]()
        for name, first in ((Maps.name, 0), (HeadMaps.name, self._below)):
            for layer, arrays in made.get(name, {"heads": {}})["heads"].items():
                rows[first + layer] = np.asarray(arrays["map"])
        return rows


def describe_rows(work: Work, names: list[str]) -> dict[str, Any]:
    """Return the fields that say what rows and columns are: options, and tokens."""
    (head,) = work.outputs.task_heads
    markers = [*head.markers] if isinstance(head, Decider) else []
    return {"options": names, "markers": markers, "tokens": work.facts["tokens"]}
