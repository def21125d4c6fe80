"""TEI's routes that need only the tokenizer, POST /tokenize and /decode; and GET /health."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING, Annotated, cast

import orjson
from pydantic import Discriminator

from model.errors import SequenceTooLong
from model.text.frame import Tokenized
from service.api.dialect import RouteContext
from service.api.inputs import Batch, Ids, Text, Texts, tag_form
from service.api.tei.embed import API
from service.observe.families import READY_PATH
from service.pipeline.worker import Steps
from service.pipeline.write.answer import write_pieces
from service.shapes.answer import Each
from service.shapes.call import BODY_ROUTE_CODES, Example, Reply, RequestHead
from service.shapes.record import Record
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest
from service.tables.wording.words import Loc

if TYPE_CHECKING:  # the table of operations must not need torch
    from service.pipeline.reader import Reader
    from service.pipeline.replica import Replica

PIECE_TOKENS = 512  # tokens written as JSON at once, which takes half a millisecond
# Bytes of memory, as measured by tests/service/pipeline/test_held.py: of a token in the lists of a
# Tokenized, and of a token's JSON apart from its characters
TOKEN_BYTES, WRITTEN_BYTES = 290, 72
HELD_ID_BYTES = 48  # of memory, for a token id in the lists of a request


class TokenizeRequest(ForeignRequest):
    """The body of TEI's POST /tokenize."""

    inputs: Annotated[
        Text | Texts,
        Discriminator(lambda value: "<texts>" if isinstance(value, list) else "<text>"),
    ]
    """A text or a list of texts."""
    add_special_tokens: bool = True
    """Whether the model's special tokens stand around each text."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: its default, where it has
    one."""


class DecodeRequest(ForeignRequest):
    """The body of TEI's POST /decode."""

    ids: Annotated[
        Ids | Batch,
        Discriminator(lambda value: "<sequences>" if tag_form(value) == "<sequences>" else "<ids>"),
    ]
    """Token ids, or a list of lists of them."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the texts."""

    def sequences(self) -> list[list[int]]:
        """Return the ids of each sequence."""
        is_one = self.ids and isinstance(self.ids[0], int)  # and so is every other
        return cast(list[list[int]], [self.ids] if is_one else self.ids)


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a text, as POST /tokenize returns it.

    Args:
        text: its characters in the text; for a special token, its name.
        start, stop: the characters' indices in prompt and text together, [start, stop); None for a
            special token.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


async def tokenize(
    replica: "Replica", request: TokenizeRequest, deadline: float, record: Record
) -> Iterator[bytes]:
    """Return the tokens of each text after its prompt, in pieces of JSON.

    A text may be longer than the model takes.

    Args:
        deadline: when the answer is due, on time.monotonic's clock.
        record: of the request; reserves the memory.

    Raises:
        Refused: there are no texts or too many, there is no such prompt, or it is too busy.
    """
    texts, reader = request.inputs, replica.reader
    texts = [texts] if isinstance(texts, str) else texts
    _check_count("inputs", texts, replica.settings.max_sequences)
    for index, text in enumerate(texts):
        reader.bound_text(text, None, partial(_place, "inputs", index), "refuse", documents=False)
    prompt = reader.prompt(request.prompt_name)
    whole = [prompt + text for text in texts]
    record.hold.take(bodies=sum(map(getsizeof, whole)))
    limit, characters = replica.settings.max_request_tokens, sum(map(len, whole))
    reading = reader.tokenizer.read_whole(whole, special=request.add_special_tokens, most=limit)
    try:
        tokenized = await reader.worker.run(reading, deadline, characters)
    except SequenceTooLong as error:
        least = error.length
        detail = f"it holds at least {least:,}, and the limit is {limit:,}"
        raise Refused(
            "too_many_tokens", detail=detail, tokens_at_least=least, limit=limit
        ) from None
    tokens = sum(len(sequence.token_ids) for sequence in tokenized)
    record.hold.take(arrays=TOKEN_BYTES * tokens, answers=WRITTEN_BYTES * tokens + characters)
    return _write_tokens(whole, tokenized)


def _place(field: str, index: int, *_: object) -> Loc:
    """Return the place in a request of the entry of a list."""
    return (field, index)


def _check_count(field: str, inputs: Sequence[object], limit: int) -> None:
    """Refuse a request without inputs, or with more than it may hold."""
    if not inputs:
        raise Refused.at("batch_empty", field, detail="expected one or more, received none")
    if len(inputs) > limit:
        detail = f"expected at most {limit:,}, received {len(inputs):,}"
        raise Refused.at("batch_too_large", field, detail=detail, limit=limit)


def _write_tokens(texts: Sequence[str], tokenized: Sequence[Tokenized]) -> Iterator[bytes]:
    """Yield the tokens of each text as JSON, in pieces: all at once would block every thread."""
    for index, (text, tokens) in enumerate(zip(texts, tokenized, strict=True)):
        yield b",[" if index else b"[["
        pieces = _token_pieces(text, tokens)
        comma = b""
        while batch := list(islice(pieces, PIECE_TOKENS)):
            yield comma + orjson.dumps(batch)[1:-1]
            comma = b","
        yield b"]"
    yield b"]"


def _token_pieces(text: str, tokens: Tokenized) -> Iterator[Piece]:
    """Yield the tokens of a text as Pieces."""
    columns = (tokens.token_ids, tokens.tokens, tokens.special, tokens.offsets)
    for id, token, special, (start, stop) in zip(*columns, strict=True):
        if special:
            yield Piece(id, token, True, None, None)
        else:
            yield Piece(id, text[start:stop], False, start, stop)


async def answer_tokenize(head: RequestHead, context: RouteContext) -> Reply:
    """Answer POST /tokenize: texts as tokens."""
    request = await context.read(head, partial(TokenizeRequest.parse, ignored=head.ignored))
    pieces = await tokenize(context.replica, request, context.deadline(head), head.record)
    return await context.write(head, pieces)


async def answer_decode(head: RequestHead, context: RouteContext) -> Reply:
    """Answer POST /decode: token ids as text."""
    request = await context.read(head, partial(DecodeRequest.parse, ignored=head.ignored))
    replica, sequences = context.replica, request.sequences()
    _check_count("ids", sequences, replica.settings.max_sequences)
    replica.gateway.resolver.check_tokens(size := sum(map(len, sequences)))
    head.record.hold.take(bodies=HELD_ID_BYTES * size)
    steps = _decode(replica.reader, sequences, special=not request.skip_special_tokens)
    texts = await replica.reader.worker.run(steps, context.deadline(head), size)
    held = sum(map(getsizeof, texts))
    head.record.hold.take(arrays=held, answers=held)
    return await context.write(head, write_pieces(Each(texts)))


def _decode(
    reader: "Reader", sequences: Sequence[Sequence[int]], *, special: bool
) -> Steps[list[str]]:
    """Decode sequences of token ids to texts, one per step; refuse ids that are no token's."""
    texts, tokenizer = list[str](), reader.tokenizer
    for index, ids in enumerate(sequences):
        reader.check_ids(ids, [0] * len(ids), partial(_place, "ids", index))
        if None in tokenizer.tokens_of([*set(ids)]):
            size = reader.config.vocabulary
            detail = f"the tokenizer has no token for one of the ids, though it is below {size}"
            raise Refused.at("token_out_of_range", "ids", index, detail=detail, limit=size)
        texts.append(tokenizer.text_of(ids, special=special))
        yield
    return texts


async def answer_health(head: RequestHead, context: RouteContext) -> Reply:
    """Answer GET /health: as GET /ready, without a body."""
    context.find_unready(head)
    return Reply()


ROUTES = [
    API.post(
        "/tokenize",
        "TEI: texts as tokens",
        TokenizeRequest,
        answers=answer_tokenize,
        codes=BODY_ROUTE_CODES,
        examples=[Example("a text", "Its tokens", '{"inputs": "All is well"}')],
    ),
    API.post(
        "/decode",
        "TEI: token ids as texts",
        DecodeRequest,
        answers=answer_decode,
        codes=BODY_ROUTE_CODES,
        examples=[
            Example(
                "ids",
                "The text of token ids",
                '{"ids": [101, 2035, 2003, 2092, 102]}',
            )
        ],
    ),
    API.get(
        "/health",
        "TEI: as GET /ready",
        answers=answer_health,
        kind="",
        public="always",
        metric=READY_PATH,
    ),
]
