"""A dialect of HTTP clients: its routes, each with a parser into the native request.

A dialect is one file or folder that ends in ROUTES and knows nothing of HTTP's server side:

    parse(body, head, served)   a Call: the native request, and how to write its answer
    problem(refused, id)        a refusal as that API's clients know it

No dialect imports another; what two of them share stands here and in the files next to this one.
What a request says outside its body, media types and the query, is read alike in all of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import orjson

from service import refusals
from service.core import Ask, Custom
from service.encode import answer
from service.encode.answer import JSON, Encoded
from service.engine.fair.rotation import FairLock
from service.observe.families import NO_INPUT
from service.observe.record import Record
from service.refusals import (
    BODY_CODES,
    HEADER_CODES,
    REFUSALS,
    Refused,
)
from service.wording.words import Loc, list_names, write_place

if TYPE_CHECKING:  # it stands above, and hands itself to a route's answer
    from service.replica import Replica

# What may be refused by any route, by one that takes a body, by one that encodes
ANY_ROUTE_CODES = (*HEADER_CODES, "method_not_allowed", "unknown_field", "internal")
BODY_ROUTE_CODES = (
    *BODY_CODES,
    "invalid_json",
    "invalid_text",
    "too_many_tokens",
    "unsupported_media_type",
    "invalid_type",
    "out_of_range",
    "missing_field",
    "batch_empty",
    "batch_too_large",
    "sequence_empty",
    "text_too_long",
    "token_out_of_range",
    "prompt_not_found",
    "overloaded",
    "deadline_exceeded",
    *ANY_ROUTE_CODES,
)
ENCODE_CODES = (
    *BODY_ROUTE_CODES,
    "answer_too_large",
    "deadline_unreachable",
    "sequence_too_long",
    "prompt_without_text",
    "space_changed",
    "nonfinite_output",
)
EMBEDDING_CODES = (*ENCODE_CODES, "model_not_found", "task_not_found")
READ_ROUTE_CODES = (*ANY_ROUTE_CODES, "not_ready")


class Reply:
    """An answer or a refusal, as it is sent.

    Args:
        body: the whole, or its pieces, each freed once its reader has taken it.
        forwarded: whether another replica has answered, in whose headers nothing is missing.
    """

    __slots__ = ("forwarded", "headers", "length", "pieces", "status")

    def __init__(
        self,
        body: bytes | Sequence[bytes] = b"",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        *,
        forwarded: bool = False,
    ) -> None:
        self.status, self.forwarded = status, forwarded
        self.pieces = [body] if isinstance(body, bytes) else list(body)
        self.length = sum(map(len, self.pieces))
        self.headers = [(b"content-length", b"%d" % self.length)]
        if media_type:
            self.add("content-type", media_type)
        for name, value in (headers or {}).items():
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Add a header."""
        self.headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))


def json_reply(value: Any, status: int = 200) -> Reply:
    """Return a value as it is sent."""
    return Reply(orjson.dumps(value), status, media_type=JSON)


class ModelFacts(NamedTuple):
    """What parsers know of the replica.

    Args:
        names: of the model without and with each of its adapters.
        tasks, layers: of the model.
        most_json: bytes of JSON that are read.
        most_sequences: in a request.
        prompts: the names of the checkpoint's prompts.
    """

    names: Sequence[str]
    tasks: Sequence[str]
    layers: int
    most_json: int
    most_sequences: int
    prompts: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(ABC):
    """One request, and how its answer is written.

    Args:
        seconds: how long the request says it may take.
        media_type: of the answer.
    """

    request: Ask
    custom: Custom = Custom()
    seconds: float = math.inf
    media_type: str = JSON

    def reply(self, body: bytes | Sequence[bytes]) -> Reply:
        """Return what is sent, in the answer's media type."""
        return Reply(body, media_type=self.media_type)

    def write_small(self, encoded: Encoded) -> Reply | None:
        """Return the answer as sent if it is small; otherwise it has to be written."""
        return None

    @abstractmethod
    async def write(self, encoded: Encoded, turn: FairLock) -> Reply:
        """Return the answer as sent.

        Args:
            turn: held while a large answer is written; see service/encode/answer.py.
        """


class JSONCall(Call):
    """A call that is answered with one tree of JSON."""

    @abstractmethod
    def to_json(self, encoded: Encoded) -> Any:
        """Return the answer as nested JSON, with the arrays, Records and Each of answer.py."""

    def write_small(self, encoded: Encoded) -> Reply | None:
        if not encoded.small:
            return None
        made = Encoded(encoded.preamble, list(encoded.items), encoded.usage)  # may raise Refused
        return self.reply(answer.write_whole(self.to_json(made), self.request.array_encoding))

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        """Return the answer in pieces, end to end."""
        return answer.write_pieces(self.to_json(encoded), self.request.array_encoding)

    async def write(self, encoded: Encoded, turn: FairLock) -> Reply:
        return self.reply(await answer.collect_body(self.pieces(encoded), turn))


Read = TypeVar("Read")


class RefusalWriter(Protocol):
    """How a dialect words a refusal."""

    def __call__(self, refused: Refused, request_id: str, /) -> Reply: ...


class RequestHead(Protocol):
    """What parsers know of a request apart from its body.

    Attributes:
        path: its own, below the prefix under which a cluster mounts us, which is `root_path`.
        media_type: of the body, one that the route takes; None is JSON.
        ignored: the fields that a request of another API has and the route does not know.
        record: what is known of it, once it has arrived whole.
    """

    path: str
    root_path: str
    query: bytes
    headers: Mapping[str, str]
    media_type: str | None
    path_params: Mapping[str, str]
    ignored: dict[str, None]
    record: Record

    def take_body(self) -> bytes:
        """Return the body, which from then on belongs to the caller alone."""


class RouteContext(Protocol):
    """What the answer of a route that does not encode may ask of the replica.

    Attributes:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
    """

    replica: "Replica"
    scrape: Callable[[bool], Awaitable[bytes]]
    targets: Callable[[], Awaitable[list[str]]] | None

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document."""

    def names(self, head: RequestHead) -> Sequence[str]:
        """Return what clients may call the models of this address."""

    def deadline(self, head: RequestHead) -> float:
        """Return when the answer is due, on time.monotonic's clock."""

    async def read(self, head: RequestHead, parse: Callable[[bytes], Read]) -> Read:
        """Return what a JSON body asks for."""

    async def write(self, head: RequestHead, pieces: Iterator[bytes]) -> Reply:
        """Return an answer in pieces of JSON."""


Parser = Callable[[bytes, RequestHead, ModelFacts], Call]
RouteHandler = Callable[[RequestHead, RouteContext], Awaitable[Reply]]
UNDESCRIBED = "any"  # the kind of JSON that another API describes


class Api(NamedTuple):
    """What the routes of an API share: how they refuse.

    Args:
        name: for people.
        problem: words a refusal.
        statuses: by code, if they differ from those in service/refusals.py.
        codes, body_codes: of routes without and with a body.
        document: the address of its own document, which describes its answers; empty: ours does.
    """

    name: str
    problem: RefusalWriter
    statuses: Mapping[str, int] = {}
    codes: Sequence[str] = READ_ROUTE_CODES
    body_codes: Sequence[str] = ENCODE_CODES
    document: str = ""

    def get(self, path: str, summary: str = "", **more: Any) -> "Route":
        """Return a route of it without a body."""
        return Route(self, "get", path, summary, **more)

    def post(
        self, path: str, summary: str, request: Any, parse: Parser | None = None, **more: Any
    ) -> "Route":
        """Return a route of it with a body."""
        return Route(self, "post", path, summary, request, parse, **more)


class Example(NamedTuple):
    """A request that the document shows.

    Args:
        summary: what it asks for.
        body: its JSON.
        query: the end of its address.
    """

    name: str
    summary: str
    body: str
    query: str = ""

    @property
    def value(self) -> Any:
        """Return its JSON, read."""
        return orjson.loads(self.body)


class Route(NamedTuple):
    """One route, as it is answered and as the document shows it.

    Args:
        summary: a sentence about it; empty: it is not in the document.
        request: the type of its body's JSON; None if it takes none.
        parse: reads the body of a route that encodes.
        when: tells whether a body is one for this route, of several with one path; without it, a
            body is where no other tells so.
        answers: answers any other route.
        kind: of the JSON that it answers, as answers.yaml writes kinds; empty if it has none.
        inputs: what metrics call the inputs that it may hold.
        metric: its name in metrics, if several paths share one.
        codes: what it may refuse with, if other than its API's routes.
        media, answer_media: schemas of other bodies, by media type; None: not described.
        headers: of the answer.
        trusted: whether a replica that knows it computes wrongly refuses it.
        public: when GET and HEAD of its path need no API key: always, or by a setting.
        more: about it, for people.
        examples: of its requests.
        parameters: of its query and headers, as OpenAPI writes them.
        task: of a model, without which it refuses every request; empty: any model answers.
    """

    api: Api
    method: str
    path: str
    summary: str = ""
    request: Any = None
    parse: Parser | None = None
    when: Callable[[bytes, ModelFacts], bool] | None = None
    answers: RouteHandler | None = None
    kind: str = UNDESCRIBED
    inputs: tuple[str, ...] = NO_INPUT
    metric: str = ""
    codes: Sequence[str] = ()
    media: Mapping[str, Any] = {}
    answer_media: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    trusted: bool = True
    public: Literal["always", "public_metrics"] | None = None
    more: str = ""
    examples: Sequence[Example] = ()
    parameters: Sequence[Mapping[str, Any]] = ()
    task: str = ""

    @property
    def label(self) -> str:
        """Return its name in metrics."""
        return self.metric or self.path

    @property
    def foreign(self) -> bool:
        """Tell whether it takes another API's request."""
        return self.request is not None and bool(self.api.document)

    @property
    def takes_ids(self) -> bool:
        """Tell whether it encodes token ids, where it is sent some."""
        return self.parse is not None and not {"tokens", "mixed"}.isdisjoint(self.inputs)

    @property
    def refusals(self) -> Sequence[str]:
        """Return the codes that it may refuse with."""
        return self.codes or (self.api.codes if self.request is None else self.api.body_codes)

    def status(self, code: str) -> int:
        """Return the status of a refusal."""
        return self.api.statuses.get(code, REFUSALS[code].status)

    @property
    def media_types(self) -> tuple[str, ...]:
        """Return the media types of the bodies that it takes, JSON first."""
        return (JSON, *self.media)

    @property
    def query(self) -> list[str]:
        """Return the parameters that its query may hold."""
        return [each["name"] for each in self.parameters if each["in"] == "query"]


def explain_refusal(refused: Refused, names: Mapping[str, str]) -> str:
    """Return a refusal in one line, for people: what is wrong, where, and the numbers that help.

    Args:
        names: of fields that the API names differently from the native request.
    """

    def where(loc: Loc) -> str:
        first, *rest = (names.get(str(loc[0]), loc[0]), *loc[1:]) if loc else ("",)
        return write_place((first, *(rest[1:] if rest[:1] == [first] else rest)))

    return refusals.word_refusal(refused, refused.faults, where)


# what programs send by default
COMMON_MEDIA_TYPES = {
    "": "empty",
    "application/x-www-form-urlencoded": "that of a form, the default of curl -d",
    "multipart/form-data": "multipart/form-data",
    "text/plain": "text/plain",
    "application/octet-stream": "application/octet-stream",
}


def check_media_type(given: str | None, types: Sequence[str]) -> None:
    """Refuse a body whose media type the route does not read.

    Args:
        given: as in the request, in lower case and without parameters; None is JSON.
    """
    if given is not None and given not in types:
        came = COMMON_MEDIA_TYPES.get(
            given, "another"
        )  # repeated only if it reveals nothing about the sender
        detail = f"the Content-Type is {came}; expected {list_names(types)}"
        raise Refused("unsupported_media_type", detail=detail)
