"""POST /v1/explain: one text through one layer of the model, every step of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model.probes import Steps
from service.pipeline.find.resolver import Resolver
from service.pipeline.worker import Workers
from service.questions.explain import ExplainRequest
from service.shapes.answer import AnswerItem
from service.shapes.ask import Custom
from service.shapes.price import Layout, Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import Plan, Read, Step
from service.shapes.work import Outputs, Work
from service.tables.refusals import Refused


class Explain:
    """A request for every step of one layer.

    The text is batched like any other: the serving pass computes the layer's input, then the lane
    computes that layer step by step.
    """

    def __init__(
        self, ask: ExplainRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._config = ask, resolver.model.config
        adapter, layers = resolver.adapter(ask.model, ask.task), self._config.layers
        if not 0 <= ask.layer < layers:
            detail = f"expected a layer of this model, 0 to {layers - 1}"
            raise Refused.at("index_out_of_range", "layer", detail=detail, layers=layers)
        self._steps = Steps(ask.layer, ask.weights)
        side = Side(
            ask.texts(),
            Outputs(probes=(self._steps,)),
            lambda number, *field: field or ("text",),
            cut=resolver.cut(ask.truncate),
            facts=True,
            adapter=adapter,
        )
        self.sides: Sequence[Side] = (side,)

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the one step; the answer is the layer's steps, their shapes and any weights."""
        (work,) = works

        async def make_items() -> Iterable[AnswerItem]:
            """Return the one item."""
            arrays = work.result.made[Steps.name]
            # a name with a dot is one of the layer's weights
            steps: dict[str, Any] = {name: step for name, step in arrays.items() if "." not in name}
            shapes = {name: step.shape for name, step in steps.items()}
            facts = {"layer": self._ask.layer, **work.shown, "shapes": shapes}
            if self._ask.weights:
                steps["parameters"] = {"eps": self._config.norm_eps, **_parameters(arrays)}
            return [AnswerItem(len(work), facts, maps=steps)]

        sizes = self._steps.bytes(self._config, len(work))
        return Plan(Step(works), Price(dict(sizes.items()), Layout()), make_items)


def _parameters(steps: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the weights among the steps, named "step.part", by step and part."""
    by_step: dict[str, dict[str, Any]] = {}
    for name, array in steps.items():
        step, dot, part = name.partition(".")
        if dot:
            by_step.setdefault(step, {})[part] = array
    return by_step
