"""The computation behind POST /v1/attend and POST /v1/explain, for learners.

One shows attention without a model, the other every step of one layer of the model.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from model.config import EncoderConfig
from model.text.tokenizer import Truncate
from service.encode import answer
from service.encode.admission import Admission
from service.encode.names import Names
from service.encode.price import SINGLE
from service.encode.reader import Reader
from service.encode.worker import one_step
from service.questions.explain import ATTEND_ADAPTER, ExplainRequest
from service.questions.explain.mechanism import Mixture, mixed_arrays, read_mixture
from service.refusals import Refused
from service.shapes.price import Layout, Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import Step
from service.shapes.work import Outputs, Work

# How many arrays an explained layer has of the shapes (tokens, width), (heads, tokens, head_dim)
# and (heads, query, key); and at most of weights of the shapes (width, heads * head_dim) and (n,)
ROWS, MIXED, MAPS = 5, 5, 2
SQUARES, VECTORS = 4, 10


class Lessons:
    """Answers POST /v1/attend and POST /v1/explain in a replica.

    Args:
        head: the fields about the model in every answer, such as its name.
        most_bytes: most bytes of the arrays in an answer.
        truncate: what happens to a text that is too long where the request does not say.
        adapted: the same as `head` for the model with an adapter, by the adapter's name.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        reader: Reader,
        admission: Admission,
        most_bytes: int,
        truncate: Truncate = "refuse",
        adapted: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self._head, self._reader, self._most_bytes = head, reader, most_bytes
        self._adapted = adapted
        self._admission, self._worker = admission, admission.lessons
        self._truncate: Truncate = truncate

    def read_attend(self, body: bytes) -> Mixture:
        """Parse a request of POST /v1/attend; raises Refused or ValidationError."""
        return read_mixture(ATTEND_ADAPTER.validate_json(body), self._most_bytes)

    async def attend(self, mixture: Mixture, deadline: float, record: Record) -> Iterator[bytes]:
        """Answer POST /v1/attend, in pieces of JSON.

        Args:
            deadline: when the answer is due, on time.monotonic's clock.

        Raises:
            Refused: with a code of service/refusals.py.
        """
        self._admission.hold(mixture.price, record, mixture.request_bytes)
        return answer.write_pieces(
            await self._worker.run(one_step(partial(mixed_arrays, mixture)), deadline)
        )

    async def explain(
        self, request: ExplainRequest, deadline: float, record: Record
    ) -> Iterator[bytes]:
        """Answer POST /v1/explain, in pieces of JSON.

        The text is batched like any other: the serving pass computes the layer's input, then the
        lane computes that layer step by step.

        Raises:
            Refused: with a code of service/refusals.py.
        """
        record.input = "text"
        head, adapter = self._resolve_adapter(request)
        record.weights = head["weights"]
        start = time.monotonic()
        try:
            text = await self._tokenize(request, adapter, deadline, record)
        finally:
            record.end_stage("tokenize", start)
        record.sequences, record.tokens = 1, len(text)
        config = self._reader.config
        price = _price_steps(config, len(text), weights=request.weights)
        await self._admission.run(Step([text]), deadline, record, price)
        steps = text.result.steps
        fields = {**head, **_explanation_fields(request.layer, text, steps)}
        if request.weights:
            fields["parameters"] = {"eps": config.norm_eps, **_parameters(steps)}
        return answer.write_pieces(fields)

    def _resolve_adapter(self, request: ExplainRequest) -> tuple[Mapping[str, Any], str | None]:
        """Return the answer's fields about the model, and the adapter; refuse an unknown layer."""
        adapter = Names(self._head["model"], [*self._adapted]).adapter(request.model, request.task)
        layers = self._reader.config.layers
        if not 0 <= request.layer < layers:
            detail = f"expected a layer of this model, 0 to {layers - 1}"
            raise Refused.at("index_out_of_range", "layer", detail=detail, layers=layers)
        return (self._adapted[adapter] if adapter else self._head), adapter

    async def _tokenize(
        self, request: ExplainRequest, adapter: str | None, deadline: float, record: Record
    ) -> Work:
        """Tokenize the text or pair of a request as one sequence, a Work for a lane."""
        side = Side(
            [request.text if request.pair is None else (request.text, request.pair)],
            Outputs(explained_layer=request.layer, weights=request.weights),
            lambda number, *field: field or ("text",),
            cut=request.truncate or self._truncate,
            facts=True,
            adapter=adapter,
        )
        (text,) = await self._reader.read(side, deadline, record)
        return text


def _price_steps(config: EncoderConfig, tokens: int, *, weights: bool) -> Price:
    """Return the bytes of memory of an explanation: of its maps, its steps and any weights."""
    width, mixed = config.width, config.mixed_width
    fixed = SINGLE * (SQUARES * width * mixed + VECTORS * max(width, mixed)) * weights

    maps = SINGLE * MAPS * config.heads * tokens**2
    steps = fixed + SINGLE * tokens * (MIXED * mixed + (ROWS + config.pre_norm) * width)
    return Price({"attention": maps, "steps": steps}, Layout())


def _explanation_fields(layer: int, text: Work, steps: Mapping[str, Any]) -> dict[str, Any]:
    """Return an explanation's fields about its text, then the steps' shapes and arrays by name."""
    cut = {"truncated": text.truncated, "length": text.length}
    # a name with a dot is one of the layer's weights, which `_parameters` returns
    steps = {name: step for name, step in steps.items() if "." not in name}
    shapes = {name: step.shape for name, step in steps.items()}
    return {"layer": layer, **text.facts, **cut, "shapes": shapes, **steps}


def _parameters(steps: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the weights among the steps, named "step.part", by step and part."""
    by_step: dict[str, dict[str, Any]] = {}
    for name, array in steps.items():
        step, dot, part = name.partition(".")
        if dot:
            by_step.setdefault(step, {})[part] = array
    return by_step
