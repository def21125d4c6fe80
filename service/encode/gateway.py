"""The spine: one function shows every stage of an answer, in order.

`Gateway.encode` is what every route that encodes does: plan, price, run, end. Everything before
`admission.run` is refusal without work. The files of this folder, each of which imports only
those before it:

    request                      what is wanted, as plain values
    shown  answer  maps          what is answered, and how it is written
    precisions                   vectors in fewer bytes
    worker                       work that no lane does
    inputs                       inputs -> sequences
    names                        which model and adapter a request names
    indices                      what a request names -> numbers
    interventions  swept         what it changes, and what follows from that
    occlusion  passage  evidence  tasks
    plan                         a request -> works
    price                        what it costs
    admission                    whether it may pass
    encoding  likeness           how requests end
    maxsim  zero_shot  highlight
    space                        which vectors may stand in one index
    gateway
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from model.adapters import Adapter
from model.config import EncoderConfig
from service.encode.admission import Admission, Estimate, held
from service.encode.answer import Encoded, Identity, Item
from service.encode.inputs import THREAD_CHARACTERS
from service.encode.interventions import Outcome
from service.encode.names import Names
from service.encode.plan import Plan, Planner
from service.encode.price import Price, adapter_flops, copy_flops, flops, head_flops
from service.encode.request import Request, ZeroShot
from service.encode.space import Spaces
from service.engine.fair.line import Timing
from service.observe.record import Record
from service.refusals import Refused
from service.settings import Settings


class Ending(Protocol):
    """What is made of the results of a request, and what it costs."""

    def check(self, request: Request) -> None:
        """Raise Refused where the model cannot end a request so."""

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh, and how it may weigh less."""

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered for each input, in the order of the answer."""


class Gateway:
    """Answers requests for encodings, whichever API they come through.

    Args:
        identities: what every answer says about the model with each adapter; None: with none.
        adapters: the model's.
        endings: by how requests say that they end.
        spaces: of the vectors that are answered.
    """

    def __init__(
        self,
        identities: Mapping[str | None, Identity],
        config: EncoderConfig,
        planner: Planner,
        admission: Admission,
        settings: Settings,
        endings: Mapping[type, Ending],
        spaces: Spaces,
        adapters: Mapping[str, Adapter],
    ) -> None:
        self._config, self._adapters, self._identities = config, adapters, identities
        self._planner, self._admission = planner, admission
        self.endings, self.spaces = endings, spaces
        self._estimate = Estimate(planner.longest, settings.max_request_tokens)

    @property
    def names(self) -> Names:
        """Return what clients may call the model."""
        return self._planner.names

    async def encode(self, request: Request, deadline: float, record: Record) -> Encoded:
        """Answer a request.

        Args:
            deadline: when the answer must be ready, on time.monotonic's clock.

        Raises:
            Refused: says why it cannot be answered.
        """
        record.input, ending = _kind(request), self.endings[type(request.ending)]
        ending.check(request)
        inputs = request.inputs
        tokens, characters = self._estimate.tokens(inputs)
        queued = characters >= THREAD_CHARACTERS
        self._admission.foresee(tokens, deadline, record, queued=queued)
        if queued:
            read = partial(self._planner.plan, request, deadline, record)
            plan = await self._admission.read_in_worker(read, tokens, held(inputs), record)
        else:
            plan = await self._planner.plan(request, deadline, record)
        self._estimate.learn(inputs, plan.works)
        if request.layout.padded:
            self._planner.check_tokens(len(plan.works) * max(plan.lengths))
        price = ending.price(request, plan)
        asked = held(inputs, plan.works)
        outcome, timing = await self._admission.run(
            plan.works, deadline, record, price, course=plan.course, asked=asked
        )
        items = await ending.finish(request, plan, outcome, deadline)
        preamble = self._identities[plan.adapter].preamble(request.dtype)
        space = self.spaces.of(request, plan.adapter)
        if space is not None:
            preamble["space"] = space
        usage = _usage(plan, price, timing)
        if truncated := _truncated(request, plan):
            usage["truncated"] = truncated
        return Encoded(preamble, items, usage, outcome.inputs)

    async def dry_run(self, request: Request, deadline: float, record: Record) -> dict[str, Any]:
        """Return what a request would cost and whether it would be admitted now; compute nothing.

        Raises:
            Refused: the request would never be answered.
        """
        record.input, ending = _kind(request), self.endings[type(request.ending)]
        ending.check(request)
        plan = await self._planner.plan(request, deadline, record)
        price = ending.price(request, plan)
        cost = {
            "tokens": plan.tokens,
            "attention_bytes": price.parts.get("attention", 0),
            "answer_bytes": price.total,
            "flops": flops(self._config, plan.lengths, plan.attention()) + head_flops(plan.works),
        }
        if plan.course:
            cost["flops"] += copy_flops(self._config, plan.course.copies)
        cost["flops"] += sum(
            adapter_flops(self._adapters[work.adapter], len(work))
            for work in plan.every
            if work.adapter
        )
        try:
            self._admission.check(plan.every, price, deadline, record)
        except Refused as refused:
            after = refused.retry_after
            return {**cost, "admitted": False, "code": refused.code, "retry_after_s": after}
        return {**cost, "admitted": True, "code": None, "retry_after_s": None}


def _kind(request: Request) -> str:
    """Return the kind of a request's inputs, as the metrics' label."""
    inputs = request.inputs
    if len(inputs) == 1 and inputs[0].text is not None:
        return "text"
    kinds = {one.kind for one in inputs}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"


def _truncated(request: Request, plan: Plan) -> int:
    """Count the inputs that were cut; a text that is read with each of some labels is one."""
    of_each = len(request.ending.labels) if isinstance(request.ending, ZeroShot) else 1
    return len({place // of_each for place, work in enumerate(plan.works) if work.truncated})


def _usage(plan: Plan, price: Price, timing: Timing) -> dict[str, Any]:
    return {
        "tokens": plan.tokens,
        "attention_bytes": price.parts.get("attention", 0),
        "answer_bytes": price.total,
        "queue_ms": round(timing.queued * 1000, 3),
        "compute_ms": round(timing.computed * 1000, 3),
    }
