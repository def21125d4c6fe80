"""One request of an API, parsed; how it is answered, and the routes that an API consists of."""

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from service.shapes.answer import JSON, Answer
from service.shapes.ask import Ask, Custom
from service.shapes.record import NO_INPUT, Record
from service.tables.refusals import BODY_CODES, HEADER_CODES, REFUSALS, Refused

# Codes of the refusals of any route; of one that takes a body; of one that encodes; of one that
# answers vectors; and of one without a body
ANY_ROUTE_CODES = (*HEADER_CODES, "method_not_allowed", "unknown_field", "internal")


BODY_ROUTE_CODES = (
    *BODY_CODES,
    "model_forbidden",
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
    """An HTTP response: status, headers and body, of an answer or a refusal.

    Args:
        body: the whole, or its pieces, each freed once the client has read it.
        stream: instead, the body of another replica's answer, in whose headers nothing is missing.
    """

    __slots__ = ("headers", "length", "pieces", "status", "stream")

    def __init__(
        self,
        body: bytes | Sequence[bytes] = b"",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        *,
        stream: AsyncGenerator[bytes] | None = None,
    ) -> None:
        self.status, self.stream = status, stream
        self.pieces = [body] if isinstance(body, bytes) else list(body)
        self.length = sum(map(len, self.pieces))
        self.headers = [] if stream else [(b"content-length", b"%d" % self.length)]
        if media_type:
            self.headers.append((b"content-type", media_type.encode()))
        for name, value in (headers or {}).items():
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Add a header, encoded for ASGI."""
        self.headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))


class ModelFacts(NamedTuple):
    """Facts about the served model and its limits, which parsers depend on.

    Args:
        names: of the model alone, then with each of its adapters.
        tasks: of its heads, such as "rerank".
        layers: how many it has.
        most_json: most bytes of JSON in a request.
        most_sequences: most sequences in a request.
        prompts: the names of the checkpoint's prompts.
    """

    names: Sequence[str]
    tasks: Sequence[str]
    layers: int
    most_json: int
    most_sequences: int
    prompts: Collection[str] = ()


class Turn(Protocol):
    """A lock, such as service/engine/fair/rotation.py's."""

    async def acquire(self) -> Literal[True]: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(ABC):
    """One parsed request, and how its answer is written.

    Args:
        request: in the native form.
        custom: how its API reads and answers otherwise than ours.
        seconds: the time-out that its body names; infinite if it names none.
        media_type: of the answer.
    """

    request: Ask
    custom: Custom = Custom()
    seconds: float = math.inf
    media_type: str = JSON

    def reply(self, body: bytes | Sequence[bytes]) -> Reply:
        """Return a response with this body, in the answer's media type."""
        return Reply(body, media_type=self.media_type)

    def write_small(self, encoded: Answer) -> Reply | None:
        """Return the response if the answer is small and written at once; else None: call write."""
        return None

    @abstractmethod
    async def write(self, encoded: Answer, turn: Turn) -> Reply:
        """Write the answer and return the response.

        Args:
            turn: held while a large answer is written; see service/pipeline/write/answer.py.
        """


class RefusalWriter(Protocol):
    """A function that writes a refusal in a dialect's form."""

    def __call__(self, refused: Refused, request_id: str, /) -> Reply: ...


class RequestHead(Protocol):
    """A request's head, as parsers and handlers see it; the edge's Request.

    Attributes:
        path: below the prefix under which a cluster mounts us, which is `root_path`.
        media_type: of the body, one that the route takes; None is JSON.
        path_params: the named parts of its path.
        ignored: gets the fields of another API's request that the route does not know.
        record: its metrics, log and trace.
        word: writes its refusal, where its body says how; None: as its API does.
    """

    path: str
    root_path: str
    query: bytes
    headers: Mapping[str, str]
    media_type: str | None
    path_params: Mapping[str, str]
    ignored: dict[str, None]
    record: Record
    word: RefusalWriter | None

    def take_body(self) -> bytes:
        """Return the body and forget it, so that the caller alone keeps it in memory."""


Parser = Callable[[bytes, RequestHead, ModelFacts], Call]  # parses the body of a route that encodes


# Answers on any other route; what it may use of the replica is in api/dialect.py
RouteHandler = Callable[[RequestHead, Any], Awaitable[Reply]]


UNDESCRIBED = "any"  # the kind in answers.yaml of JSON that another API's document describes


class Api(NamedTuple):
    """What the routes of one API share: how they refuse, and where they are described.

    Args:
        name: shown in the API document.
        problem: writes a refusal in its form.
        statuses: by code, where they differ from those in service/tables/refusals.py.
        codes, body_codes: codes of refusals, of routes without and with a body.
        document: the URL of its own document, which describes its answers; empty: ours does.
    """

    name: str
    problem: RefusalWriter
    statuses: Mapping[str, int] = {}
    codes: Sequence[str] = READ_ROUTE_CODES
    body_codes: Sequence[str] = ENCODE_CODES
    document: str = ""

    def get(self, path: str, summary: str = "", **more: Any) -> "Route":
        """Return a route of this API for GET; `more` are further fields of Route."""
        return Route(self, "get", path, summary, **more)

    def post(
        self, path: str, summary: str, request: Any, parse: Parser | None = None, **more: Any
    ) -> "Route":
        """Return a route of this API for POST; `more` are further fields of Route."""
        return Route(self, "post", path, summary, request, parse, **more)


class Example(NamedTuple):
    """An example request in the API document.

    Args:
        summary: what it asks for.
        body: its JSON.
        query: its query string, such as "dry_run=true".
    """

    name: str
    summary: str
    body: str
    query: str = ""

    @property
    def value(self) -> Any:
        """Return its body as parsed JSON."""
        return orjson.loads(self.body)


class Route(NamedTuple):
    """One route: how it is answered, and its entry in the API document.

    Args:
        method: in lower case.
        summary: a sentence about it; empty: it is not in the document.
        request: the type of its body's JSON; None if it takes none.
        parse: parses the body of a route that encodes.
        when: tells whether a body is for this route, where several routes have one path; the one
            route without it takes all other bodies.
        answers: the handler of a route that does not encode.
        kind: of the JSON that it answers, as answers.yaml writes kinds; empty if it has none.
        inputs: the kinds of inputs that its requests may hold, as metrics name them.
        metric: its name in metrics, if several paths share one.
        codes: codes of its refusals; empty: those of its API.
        media, answer_media: schemas of bodies other than JSON, by media type; None: not described.
        headers: those of the answer, as OpenAPI writes them.
        trusted: whether it is refused while the replica has found its own results to be wrong.
        public: when GET and HEAD of its path need no API key: always, or by a setting.
        more: its description in the document, after the summary.
        examples: of its requests.
        parameters: of its query and headers, as OpenAPI writes them.
        task: of a model, without which it refuses every request; empty: any model answers.
        values: how many more objects its requests may hold than those of other routes.
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
    values: int = 0

    @property
    def label(self) -> str:
        """Return its name in metrics."""
        return self.metric or self.path

    @property
    def foreign(self) -> bool:
        """Tell whether its requests are of another API than ours."""
        return self.request is not None and bool(self.api.document)

    @property
    def refusals(self) -> Sequence[str]:
        """Return the codes of its refusals."""
        return self.codes or (self.api.codes if self.request is None else self.api.body_codes)

    def status(self, code: str) -> int:
        """Return the HTTP status of its refusal with a code."""
        return self.api.statuses.get(code, REFUSALS[code].status)

    @property
    def media_types(self) -> tuple[str, ...]:
        """Return the media types of the bodies that it takes, JSON first."""
        return (JSON, *self.media)

    @property
    def query(self) -> list[str]:
        """Return the names of its query parameters."""
        return [parameter["name"] for parameter in self.parameters if parameter["in"] == "query"]
