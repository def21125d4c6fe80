"""Turns a request's inputs into sequences that the model can run, or refuses them."""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from model import packing
from model.config import EncoderConfig
from model.errors import SequenceTooLong
from model.loading.sentence_transformers import Prompts
from model.text.frame import Tokenized
from model.text.pieces import run_reading
from model.text.tokenizer import Tokenizer, Truncate
from service.engine.fair.turns import PIECE_ENTRIES, in_turns, next_turn
from service.pipeline.find.tasks import check_task
from service.pipeline.worker import Worker, is_long
from service.shapes.inputs import Base64Array, InputItem, numbered_items, text_and_pair
from service.shapes.record import Record
from service.shapes.side import Placer, Side
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.wording.words import Loc, count_noun, quote_names, suggest_name

MOST_TEXT_CHARACTERS = 262_144  # of a text, which is tokenized before it is cut: 65,536 tokens
MOST_EMBEDDING = 1e4  # largest absolute value: real hidden states are below, and float16 overflows

# Details of refusals
NO_PLACE_FOR_INSTRUCTION = "this model's texts have no place for one"
EMPTY_TEXT = "expected one character or more, received an empty string"

TOKEN_FACTS = ("tokens", "token_ids", "offsets", "words", "special")  # fields of an answer

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts among a side's inputs."""

    prompt: str  # before each
    indices: list[int] = field(default_factory=list)  # of each in the inputs
    parts: list[tuple[str] | tuple[str, str]] = field(default_factory=list)  # with its pair, if any
    shortened: list[int] = field(default_factory=list)  # indices of those that were cut


@dataclass(frozen=True, slots=True)
class Reader:
    """Tokenizes and checks the inputs of requests for one model."""

    tokenizer: Tokenizer
    config: EncoderConfig
    max_tokens: int  # most tokens of a sequence
    max_characters: int  # most characters of a text
    max_embedding: float  # largest absolute value in embeddings
    prompts: Prompts  # the checkpoint's prompts, by name
    instructions: Mapping[str, str]  # prompts for requests that name none, by adapter
    worker: Worker  # thread that tokenizes if that takes long; see `is_long`

    async def read(self, side: Side, deadline: float, record: Record | None = None) -> list[Work]:
        """Tokenize a side's texts, check its other inputs, and return their works in order.

        Args:
            deadline: when the answer must be ready, on time.monotonic's clock.
            record: of the request, which the works carry.

        Raises:
            Refused: too much waits to be tokenized, or an input cannot be read; `loc` says which.
        """
        truncate, role = self.tokenizer.resolve_truncation(side.cut), side.role
        limit, markers = side.most or self.max_tokens, 0
        if not side.bare:
            limit = min(self.max_tokens, limit)
        if role is not None:
            limit, markers = min(role.length, limit), role.marker_tokens
        texts = await self._bound_texts(side, truncate)
        tokenized = await self._tokenize(side, texts, (limit, markers), truncate, deadline, record)
        remaining = zip(tokenized, texts.parts, strict=True)
        works = list[Work]()
        for index, item in enumerate(side.inputs):
            if type(item) is InputItem and item.text is None:
                place = partial(side.at, index)
                works.append(self._read_numbers(side, item, place, truncate, limit, record))
            else:
                works.append(self._read_text(side, *next(remaining), record))
            if len(works) % PIECE_ENTRIES == 0:
                await next_turn()
        for index in texts.shortened:  # these count as truncated, even if the cut saved no token
            works[index].length = max(works[index].length, len(works[index]) + 1)
        for task in side.tasks:
            await check_task(task, works, side.at, filled=side.filled)
        if side.tasks and any([task.fit for task in side.tasks]):
            async for work in in_turns(works):
                fitted = tuple([task.fitted(work) for task in side.tasks])
                work.outputs = replace(work.outputs, task_heads=fitted)
        return works

    async def _bound_texts(self, side: Side, truncate: Truncate) -> _Texts:
        """Return a side's texts, each cut to `max_characters`; refuse what no text may be."""
        texts, has_documents = _Texts(self._choose_prompt(side)), side.documents is not None
        for index, item in enumerate(side.inputs):
            if index and index % PIECE_ENTRIES == 0:
                await next_turn()
            text, pair = (item, None) if type(item) is str else text_and_pair(item)
            if text is None:
                continue
            if not text or pair is not None or len(text) > self.max_characters:
                uncut, place = (text, pair), partial(side.at, index)
                text, pair = self.bound_text(*uncut, place, truncate, has_documents)
                if (text, pair) != uncut:
                    texts.shortened.append(index)
            texts.indices.append(index)
            texts.parts.append((text,) if pair is None else (text, pair))
        return texts

    async def _tokenize(
        self,
        side: Side,
        texts: _Texts,
        lengths: tuple[int, int],
        truncate: Truncate,
        deadline: float,
        record: Record | None,
    ) -> Sequence[Tokenized]:
        """Tokenize a side's texts, on a thread if they are long.

        Args:
            lengths: the most tokens of a sequence, and how many of them a role's markers take.
        """
        (limit, markers), documents = lengths, side.documents
        if side.bare:
            whole = [parts[0] for parts in texts.parts]
            reading = self.tokenizer.read_whole(whole, special=False, most=limit)
        else:
            reading = self.tokenizer.read_texts(
                texts.parts,
                limit - markers,
                truncate,
                texts.prompt,
                counted=side.counted or side.facts,
                facts=side.facts,
                last=documents.most if documents else None,
                second_whole=documents is not None and documents.whole,
            )
        parts = list(chain.from_iterable(texts.parts))
        characters = len(texts.prompt) * len(parts) + sum(map(len, parts))
        try:
            if not is_long(characters, len(texts.parts)):
                return run_reading(reading)
            return await self.worker.run(reading, deadline, characters, record)
        except SequenceTooLong as error:
            place = side.at(texts.indices[error.index])
            _refuse_length(error.length + markers, limit, place)

    def _choose_prompt(self, side: Side) -> str:
        """Return the instruction or prompt before each text of a side; refuse what it may not."""
        prompt = self.prompt_of(side)
        if side.instruction is not None:
            self._check_instruction()
            prompt = side.instruction
        if side.prompt_name is not None or side.prompt is not None:
            _check_texts(side)
        return prompt

    def prompt_of(self, side: Side) -> str:
        """Return the prompt before each text of a side, unless it has an instruction."""
        if side.prompt is not None:
            return side.prompt
        role, role_prompt = side.role, None
        if role is not None and side.prompt_name is None:
            role_prompt = role.prompt
        if role_prompt is not None:
            return role_prompt
        return self.prompt(side.prompt_name, side.adapter)

    def _check_instruction(self) -> None:
        """Refuse an instruction where the model's template has no place for it."""
        template = self.tokenizer.template
        if template is None or "system" not in template.roles:
            raise Refused.at("prompt_not_found", "instruction", detail=NO_PLACE_FOR_INSTRUCTION)

    def prompt(self, name: str | None, adapter: str | None = None) -> str:
        """Return a prompt, which is put before each text; "" if there is none.

        Args:
            name: None: the adapter's instruction or, without one, the checkpoint's default prompt.
            adapter: name of the adapter that the request asks for.

        Raises:
            Refused: the checkpoint has no prompt of that name.
        """
        if name is None and adapter is not None and adapter in self.instructions:
            return self.instructions[adapter]
        try:
            return self.prompts.find(name)
        except KeyError:
            names = sorted(self.prompts.texts)
            has = f"this model has {quote_names(names, 'and') if names else 'no prompts'}"
            facts: dict[str, Any] = {
                "detail": f"{has}{suggest_name(name, names)}",
                "prompts": names,
            }
            raise Refused.at("prompt_not_found", "prompt_name", **facts) from None

    def bound_text(
        self, text: str, pair: str | None, at: Placer, truncate: Truncate, documents: bool
    ) -> tuple[str, str | None]:
        """Return a text and its pair, if any, cut to `max_characters` each; refuse empty ones.

        Args:
            documents: whether the last text is a document, which may be empty.
        """
        most, last = self.max_characters, "text" if pair is None else "pair"
        kept = slice(-most, None) if truncate == "left" else slice(most)
        for name, part in (("text", text), ("pair", pair)):
            if part == "" and not (documents and name == last):
                raise Refused.at("sequence_empty", *at(name), detail=EMPTY_TEXT)
            if part is not None and len(part) > most and truncate == "refuse":
                raise Refused.at("text_too_long", *at(name), length=len(part), limit=most)
        return text[kept], pair and pair[kept]

    def _read_text(
        self, side: Side, text: Tokenized, parts: Sequence[str], record: Record | None
    ) -> Work:
        """Return the work of a tokenized text; `parts` has the text and its pair, if any."""
        unseen, role = 0, side.role
        special = self.tokenizer.special_ids
        blank = len(parts) == 1 and (parts[0].isspace() or special.issuperset(text.token_ids))
        if role is not None:
            unseen, text = role.count_unseen(text), role.frame_text(text)
        # the tokenizer's types of a pair's segments are ignored if the model has only one type
        types = text.types if self.config.types > 1 else None
        shown: dict[str, Any] = {}
        if side.facts:
            names = (*TOKEN_FACTS, "segments") if len(parts) > 1 else TOKEN_FACTS
            shown = {name: getattr(text, name) for name in names}
        sequence = packing.Sequence(text.token_ids, types, unseen=unseen)
        length, adapter = text.length, side.adapter
        return Work(sequence, side.outputs, record, None, length, shown, role, adapter, blank)

    def _read_numbers(
        self,
        side: Side,
        item: InputItem,
        at: Placer,
        truncate: Truncate,
        limit: int,
        record: Record | None,
    ) -> Work:
        """Check an input of token ids or embeddings, cut it to `limit`, and return its work."""
        outputs, adapter = side.outputs, side.adapter
        if item.token_ids is not None:
            ids, types = item.token_ids, item.token_type_ids
            types = [0] * len(ids) if types is None else types
            cut = _kept_part(len(ids), at, truncate, limit)
            self.check_ids(ids, types, at)
            shown = self._token_facts(ids[cut]) if side.facts else {}
            sequence = packing.Sequence(ids[cut], types[cut])
            return Work(sequence, outputs, record, None, len(ids), shown, side.role, adapter)
        if item.embeddings is None:
            raise RuntimeError("an input of no kind: this is a bug")
        vectors = _to_vectors(item.embeddings, at)
        self._check_vectors(vectors, at)
        cut = _kept_part(len(vectors), at, truncate, limit)
        sequence = packing.Sequence(embeddings=torch.from_numpy(vectors[cut]))
        shown = dict.fromkeys(TOKEN_FACTS) if side.facts else {}
        return Work(sequence, outputs, record, None, len(vectors), shown, None, adapter)

    def check_ids(self, ids: Sequence[int], types: Sequence[int], at: Placer) -> None:
        """Refuse token ids or types that are empty, of unequal number, or unknown to the model."""
        if not ids:
            detail = "expected one token id or more, received an empty list"
            raise Refused.at("sequence_empty", *at("token_ids"), detail=detail)
        if len(types) != len(ids):
            detail = f"expected {len(ids):,} types, one for each token id, received {len(types):,}"
            raise Refused.at("shape_mismatch", *at("token_type_ids"), detail=detail)
        _check_table(ids, self.config.vocabulary, at("token_ids"))
        # a model without a table of types knows type 0 only
        _check_table(types, max(self.config.types, 1), at("token_type_ids"))

    def _check_vectors(self, vectors: Array, at: Placer) -> None:
        """Refuse embeddings that are empty, of a wrong shape, not finite, or too large."""
        loc = at("embeddings")
        if vectors.shape[:1] == (0,):
            detail = "expected one row or more, received none"
            raise Refused.at("sequence_empty", *loc, detail=detail)
        width = self.config.embedding_width  # of the embedding table, before any projection
        if vectors.ndim != 2 or vectors.shape[1] != width:
            detail = f"expected the shape (tokens, {width}), received {vectors.shape}"
            raise Refused.at("shape_mismatch", *loc, detail=detail, limit=width)
        if not np.isfinite(vectors).all():
            count = int(np.count_nonzero(~np.isfinite(vectors)))
            verb = "is" if count == 1 else "are"
            detail = f"{count_noun(count, 'number')} {verb} NaN, infinite or too large for float32"
            raise Refused.at("non_finite", *loc, detail=detail)
        if max(vectors.max(), -vectors.min()) > self.max_embedding:
            detail = f"expected numbers from -{self.max_embedding:g} to {self.max_embedding:g}"
            raise Refused.at("out_of_range", *loc, detail=detail)

    def _token_facts(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the fields that an answer shows of an input of token ids."""
        special = self.tokenizer.special_ids
        return {
            "tokens": self.tokenizer.tokens_of(ids),
            "token_ids": ids,
            "offsets": None,
            "words": None,
            "special": [token_id in special for token_id in ids],
        }


def _check_texts(side: Side) -> None:
    """Refuse inputs that are not texts, where the request has a prompt or names one."""
    for index, item in numbered_items(side.inputs):
        if item.text is None:
            detail = "a prompt goes with texts, and this input is not one"
            raise Refused.at("prompt_without_text", *side.at(index), detail=detail)


def _kept_part(length: int, at: Placer, truncate: Truncate, limit: int) -> slice:
    """Return the slice of an input of ids or embeddings to keep, or refuse one that is too long."""
    if length <= limit:
        return slice(None)
    if truncate == "refuse":
        _refuse_length(length, limit, at())
    return slice(limit) if truncate == "right" else slice(-limit, None)


def _check_table(numbers: Sequence[int], size: int, loc: Loc) -> None:
    """Refuse numbers outside the rows of a model's table, 0 to below `size`."""
    if min(numbers) < 0 or max(numbers) >= size:
        index = next(i for i, number in enumerate(numbers) if not 0 <= number < size)
        detail = f"entry {index} is outside this model's table, 0 to {size - 1}"
        raise Refused.at("token_out_of_range", *loc, detail=detail, limit=size)


def _refuse_length(length: int, limit: int, loc: Loc) -> NoReturn:
    """Refuse a sequence of too many tokens."""
    raise Refused.at("sequence_too_long", *loc, length=length, limit=limit)


def _to_vectors(embeddings: Array | Sequence[Sequence[float]] | Base64Array, at: Placer) -> Array:
    """Return embeddings as an array, whose shape is not checked yet."""
    if isinstance(embeddings, np.ndarray):
        return embeddings
    if isinstance(embeddings, Base64Array):
        return _decode_vectors(embeddings, at)
    widths = {len(row) for row in embeddings}
    detail = f"expected rows of one width, received rows of {min(widths)} to {max(widths)}"
    raise Refused.at("shape_mismatch", *at("embeddings"), detail=detail)


def _decode_vectors(array: Base64Array, at: Placer) -> Array:
    """Decode embeddings from base64 to float32, (tokens, width)."""
    loc = at("embeddings")
    if len(array.shape) != 2 or min(array.shape) < 0:
        detail = "expected a shape of two numbers, [tokens, width], none of them negative"
        raise Refused.at("shape_mismatch", *loc, detail=detail)
    try:
        data = base64.b64decode(array.data, validate=True)
    except (binascii.Error, ValueError):
        detail = "expected the standard alphabet (A-Z a-z 0-9 + /) with padding and no line ends"
        raise Refused.at("bad_base64", *loc, detail=detail) from None
    dtype = np.dtype(array.dtype).newbyteorder("<")
    size = math.prod(array.shape) * dtype.itemsize
    if len(data) != size:
        detail = f"expected {size:,} bytes, as shape and dtype say, received {len(data):,}"
        raise Refused.at("payload_length_mismatch", *loc, detail=detail)
    return np.frombuffer(data, dtype).reshape(array.shape).astype(np.float32)
