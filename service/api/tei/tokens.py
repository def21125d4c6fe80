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
from service.tables.settings import Settings
from service.tables.wording.wire import ForeignRequest

if TYPE_CHECKING:  # the table of operations must not need torch
    from service.pipeline.reader import Reader

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


class Vocabulary:
    """Tokenizes and decodes for requests; a sequence may be longer than the model takes."""

    def __init__(self, reader: "Reader", settings: Settings) -> None:
        self._reader, self._settings = reader, settings

    async def tokenize(
        self,
        texts: Sequence[str],
        prompt_name: str | None,
        deadline: float,
        record: Record,
        *,
        special: bool,
    ) -> Iterator[bytes]:
        """Return the tokens of each text after its prompt, in pieces of JSON.

        Args:
            deadline: when the answer is due, on time.monotonic's clock.
            record: of the request; reserves the memory.
            special: whether special tokens are added.

        Raises:
            Refused: there are no texts or too many, there is no such prompt, or it is too busy.
        """
        self._check_count("inputs", texts)
        for index, text in enumerate(texts):
            self._check_text(text, index)
        prompt = self._reader.prompt(prompt_name)
        whole = [prompt + text for text in texts]
        record.reserve(bodies=sum(map(getsizeof, whole)))
        steps, characters = self._tokenize(whole, special), sum(map(len, whole))
        tokenized = await self._reader.worker.run(steps, deadline, characters)
        tokens = sum(len(sequence.token_ids) for sequence in tokenized)
        written = WRITTEN_BYTES * tokens + characters
        record.reserve(arrays=TOKEN_BYTES * tokens, answers=written)
        return _write_tokens(whole, tokenized)

    async def decode(
        self, sequences: Sequence[Sequence[int]], deadline: float, record: Record, *, special: bool
    ) -> Iterator[bytes]:
        """Return the text of each sequence of token ids, in pieces of JSON.

        Args:
            deadline: when the answer is due, on time.monotonic's clock.
            record: of the request; reserves the memory.
            special: whether special tokens are included.

        Raises:
            Refused: there are no ids or too many, the vocabulary lacks one, or it is too busy.
        """
        self._check_count("ids", sequences)
        self._check_tokens(sum(map(len, sequences)))
        steps, size = self._decode(sequences, special), sum(map(len, sequences))
        record.reserve(bodies=HELD_ID_BYTES * size)
        texts = await self._reader.worker.run(steps, deadline, size)
        held = sum(map(getsizeof, texts))
        record.reserve(arrays=held, answers=held)
        return write_pieces(Each(texts))

    def _tokenize(self, texts: Sequence[str], special: bool) -> Steps[list[Tokenized]]:
        """Tokenize texts, one per step; refuse more tokens than a request may hold."""
        limit = self._settings.max_request_tokens
        try:
            return (
                yield from self._reader.tokenizer.read_whole(texts, special=special, most=limit)
            )
        except SequenceTooLong as error:
            least = error.length
            detail = f"it holds at least {least:,}, and the limit is {limit:,}"
            raise Refused(
                "too_many_tokens", detail=detail, tokens_at_least=least, limit=limit
            ) from None

    def _decode(self, sequences: Sequence[Sequence[int]], special: bool) -> Steps[list[str]]:
        """Decode sequences of token ids to texts, one per step."""
        texts = []
        for index, ids in enumerate(sequences):
            self._check_ids(ids, index)
            self._check_in_tokenizer(ids, index)
            texts.append(self._reader.tokenizer.text_of(ids, special=special))
            yield
        return texts

    def _check_count(self, field: str, inputs: Sequence[object]) -> None:
        """Refuse a request without inputs, or with more than it may hold."""
        if not inputs:
            raise Refused.at("batch_empty", field, detail="expected one or more, received none")
        if len(inputs) > (limit := self._settings.max_sequences):
            detail = f"expected at most {limit:,}, received {len(inputs):,}"
            raise Refused.at("batch_too_large", field, detail=detail, limit=limit)

    def _check_text(self, text: str, index: int) -> None:
        """Refuse an empty text, and one of too many characters; `index` is its place."""
        limit = self._reader.max_characters
        if not text:
            raise Refused.at("sequence_empty", "inputs", index, detail="received an empty string")
        if len(text) > limit:
            raise Refused.at("text_too_long", "inputs", index, length=len(text), limit=limit)

    def _check_ids(self, ids: Sequence[int], index: int) -> None:
        """Refuse a sequence without ids, or with ids beyond the embedding table."""
        size = self._reader.config.vocabulary
        if not ids:
            raise Refused.at("sequence_empty", "ids", index, detail="received an empty list")
        if min(ids) < 0 or max(ids) >= size:
            detail = f"expected ids from 0 to {size - 1}"
            raise Refused.at("token_out_of_range", "ids", index, detail=detail, limit=size)

    def _check_in_tokenizer(self, ids: Sequence[int], index: int) -> None:
        """Refuse an id for which the tokenizer has no token, though the embedding table has it."""
        size, tokenizer = self._reader.config.vocabulary, self._reader.tokenizer
        if None in tokenizer.tokens_of([*set(ids)]):
            detail = f"the tokenizer has no token for one of the ids, though it is below {size}"
            raise Refused.at("token_out_of_range", "ids", index, detail=detail, limit=size)

    def _check_tokens(self, tokens: int) -> None:
        """Refuse more tokens than a request may hold."""
        limit = self._settings.max_request_tokens
        if tokens > limit:
            detail = f"it holds {tokens:,}, and the limit is {limit:,}"
            raise Refused("too_many_tokens", detail=detail, tokens=tokens, limit=limit)


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
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    pieces = await _vocabulary_of(context).tokenize(
        texts,
        request.prompt_name,
        context.deadline(head),
        head.record,
        special=request.add_special_tokens,
    )
    return await context.write(head, pieces)


async def answer_decode(head: RequestHead, context: RouteContext) -> Reply:
    """Answer POST /decode: token ids as text."""
    request = await context.read(head, partial(DecodeRequest.parse, ignored=head.ignored))
    special, deadline = not request.skip_special_tokens, context.deadline(head)
    vocabulary = _vocabulary_of(context)
    pieces = await vocabulary.decode(request.sequences(), deadline, head.record, special=special)
    return await context.write(head, pieces)


def _vocabulary_of(context: RouteContext) -> Vocabulary:
    """Return the Vocabulary of a replica."""
    replica = context.replica
    return Vocabulary(replica.reader, replica.settings)


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
        examples=[
            Example("a text", "Its tokens", '{"inputs": "All is well", "add_special_tokens": true}')
        ],
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
                '{"ids": [2035, 2003, 2092], "skip_special_tokens": true}',
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
