"""Inputs as they came -> sequences the model can run, or a refusal that says which and why."""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from service.core import Placer, Side
from service.encode.worker import THREAD_CHARACTERS, Worker
from service.engine.work import Work
from service.inputs import Base64Array, Item, numbered_items, text_and_pair
from service.observe.record import Record
from service.refusals import Refused
from service.wording.words import Loc, count_noun, quote_names, suggest_name

MOST_TEXT_CHARACTERS = 262_144  # of a text, tokenized whole before it is cut: some 65,536 tokens
MOST_EMBEDDING = 1e4  # either sign: a hidden state beyond it is none, and would overflow float16

NO_PLACE_FOR_INSTRUCTION = "this model's texts have no place for one"
EMPTY_TEXT = "expected one character or more, received an empty string"


TOKEN_FACTS = ("tokens", "token_ids", "offsets", "words", "special")

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the inputs of requests for one model.

    Args:
        max_tokens: longest sequence.
        max_characters: longest text, before tokenizing.
        max_embedding: largest number in embeddings, either sign.
        prompts: the checkpoint's.
        instructions: what goes before a text where a request names no prompt, by adapter.
        worker: where texts of more than a few characters are tokenized.
    """

    tokenizer: Tokenizer
    config: EncoderConfig
    max_tokens: int
    max_characters: int
    max_embedding: float
    prompts: Prompts
    instructions: Mapping[str, str]
    worker: Worker

    async def read(self, side: Side, deadline: float, record: Record | None = None) -> list[Work]:
        """Tokenize the texts, check the rest; in the order given.

        Args:
            deadline: when the answer must be there, on time.monotonic's clock.
            record: of the request that they are of.

        Raises:
            Refused: too much waits to be tokenized, or an input cannot be read; `loc` says which.
        """
        inputs, at, facts, role, documents = (
            *(side.inputs, side.at, side.facts, side.role, side.documents),
        )
        truncate, prompt = self.tokenizer.resolve_truncation(side.cut), self.prompt_of(side)
        if side.instruction is not None:
            self._check_instruction()
            prompt = side.instruction
        if side.prompt_name is not None:
            _check_texts(side)
        texts, parts, characters = list[int](), list[tuple[str] | tuple[str, str]](), 0
        shortened = list[int]()
        for index, one in enumerate(inputs):
            text, pair = text_and_pair(one)
            if text is None:
                continue
            if not text or pair is not None or len(text) > self.max_characters:
                whole = text, pair
                text, pair = self._bound_text(
                    *whole, partial(at, index), truncate, documents is not None
                )
                if (text, pair) != whole:
                    shortened.append(index)
            texts.append(index)
            parts.append((text,) if pair is None else (text, pair))
            characters += len(prompt) + len(text)
            if pair is not None:
                characters += len(prompt) + len(pair)
        limit, added = min(self.max_tokens, side.most or self.max_tokens), 0
        if role is not None:
            limit, added = min(role.length, limit), role.marker_tokens
        reading = self.tokenizer.read_texts(
            parts,
            limit - added,
            truncate,
            prompt,
            counted=side.counted or facts,
            facts=facts,
            last=documents.most if documents else None,
            second_whole=documents is not None and documents.whole,
        )
        try:
            if characters < THREAD_CHARACTERS:
                tokenized = run_reading(reading)
            else:
                tokenized = await self.worker.run(reading, deadline, characters, record)
        except SequenceTooLong as error:
            _refuse_length(error.length + added, limit, at(texts[error.index]))
        rest = zip(tokenized, parts, strict=True)
        works = [
            self._read_numbers(side, one, partial(at, index), truncate, limit, record)
            if isinstance(one, Item) and one.text is None
            else self._read_text(side, *next(rest), record)
            for index, one in enumerate(inputs)
        ]
        for index in shortened:  # cut, though of a long word there may be one token
            works[index].length = max(works[index].length, len(works[index]) + 1)
        for task in side.tasks:
            task.check(works, at, filled=side.filled)
        if any([task.fit for task in side.tasks]):
            for work in works:
                fitted = tuple([task.fitted(work) for task in side.tasks])
                work.outputs = replace(work.outputs, task_heads=fitted)
        return works

    def prompt_of(self, side: Side) -> str:
        """Return what goes before each text of a side, but for an instruction."""
        role, own = side.role, None
        if role is not None and side.prompt_name is None:
            own = role.prompt
        return self.prompt(side.prompt_name, side.adapter) if own is None else own

    def _check_instruction(self) -> None:
        """Refuse an instruction where the model's template has no place for it."""
        template = self.tokenizer.template
        if template is None or "system" not in template.roles:
            raise Refused.at("prompt_not_found", "instruction", detail=NO_PLACE_FOR_INSTRUCTION)

    def prompt(self, name: str | None, adapter: str | None = None) -> str:
        """Return what goes before a text; "" is nothing.

        Args:
            name: None: the adapter's instruction or, without one, the checkpoint's default.

        Raises:
            Refused: the checkpoint has no prompt of that name.
        """
        if name is None and adapter is not None and adapter in self.instructions:
            return self.instructions[adapter]
        try:
            return self.prompts.find(name)
        except KeyError:
            names = sorted(self.prompts.texts)
            has = f"this model has {quote_names(names, 'and')}" if names else "this model has none"
            detail = f"{has}{suggest_name(name, names)}"
            raise Refused.at(
                "prompt_not_found", "prompt_name", detail=detail, prompts=names
            ) from None

    def _bound_text(
        self, text: str, pair: str | None, at: Placer, truncate: Truncate, documents: bool
    ) -> tuple[str, str | None]:
        """Return a text and its pair, if any, cut to the characters that are tokenized."""
        most, last = self.max_characters, "text" if pair is None else "pair"
        kept = slice(-most, None) if truncate == "left" else slice(most)
        for name, one in (("text", text), ("pair", pair)):
            if one == "" and not (documents and name == last):
                raise Refused.at("sequence_empty", *at(name), detail=EMPTY_TEXT)
            if one is not None and len(one) > most and truncate == "refuse":
                raise Refused.at("text_too_long", *at(name), length=len(one), limit=most)
        return text[kept], pair and pair[kept]

    def _read_text(
        self, side: Side, text: Tokenized, parts: Sequence[str], record: Record | None
    ) -> Work:
        unseen, role = 0, side.role
        if role is not None:
            unseen, text = role.count_unseen(text), role.frame_text(text)
        # a table of one row tells no segments apart, whatever types the tokenizer gives a pair
        types = text.types if self.config.types > 1 else None
        shown: dict[str, Any] = {}
        if side.facts:
            names = (*TOKEN_FACTS, "segments") if len(parts) > 1 else TOKEN_FACTS
            shown = {name: getattr(text, name) for name in names}
        sequence = packing.Sequence(text.token_ids, types, unseen=unseen)
        length, adapter = text.length, side.adapter
        return Work(sequence, side.outputs, record, None, length, shown, role, adapter)

    def _read_numbers(
        self,
        side: Side,
        item: Item,
        at: Placer,
        truncate: Truncate,
        limit: int,
        record: Record | None,
    ) -> Work:
        outputs, adapter = side.outputs, side.adapter
        if item.token_ids is not None:
            ids, types = item.token_ids, item.token_type_ids
            types = [0] * len(ids) if types is None else types
            cut = _kept_part(len(ids), at, truncate, limit)
            self._check_ids(ids, types, at)
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

    def _check_ids(self, ids: Sequence[int], types: Sequence[int], at: Placer) -> None:
        if not ids:
            detail = "expected one token id or more, received an empty list"
            raise Refused.at("sequence_empty", *at("token_ids"), detail=detail)
        if len(types) != len(ids):
            detail = f"expected {len(ids):,} types, one for each token id, received {len(types):,}"
            raise Refused.at("shape_mismatch", *at("token_type_ids"), detail=detail)
        _check_table(ids, self.config.vocabulary, at("token_ids"))
        # where there is no table, all are of type 0
        _check_table(types, max(self.config.types, 1), at("token_type_ids"))

    def _check_vectors(self, vectors: Array, at: Placer) -> None:
        loc = at("embeddings")
        if vectors.shape[:1] == (0,):
            detail = "expected one row or more, received none"
            raise Refused.at("sequence_empty", *loc, detail=detail)
        width = self.config.embedding_width  # what the look-up gives, before any projection
        if vectors.ndim != 2 or vectors.shape[1] != width:
            detail = f"expected the shape (tokens, {width}), received {vectors.shape}"
            raise Refused.at("shape_mismatch", *loc, detail=detail, limit=width)
        if not np.isfinite(vectors).all():
            count = int(np.count_nonzero(~np.isfinite(vectors)))
            detail = f"NaN, infinite or too large for float32: {count_noun(count, 'number')}"
            raise Refused.at("non_finite", *loc, detail=detail)
        if max(vectors.max(), -vectors.min()) > self.max_embedding:
            detail = f"expected numbers from -{self.max_embedding:g} to {self.max_embedding:g}"
            raise Refused.at("out_of_range", *loc, detail=detail)

    def _token_facts(self, ids: Sequence[int]) -> dict[str, Any]:
        special = self.tokenizer.special_ids
        return {
            "tokens": [self.tokenizer.token_of(token_id) for token_id in ids],
            "token_ids": ids,
            "offsets": None,
            "words": None,
            "special": [token_id in special for token_id in ids],
        }


def _check_texts(side: Side) -> None:
    """Refuse inputs that no prompt goes before."""
    for index, one in numbered_items(side.inputs):
        if one.text is None:
            detail = '"prompt_name" goes with texts, and this input is not one'
            raise Refused.at("prompt_without_text", *side.at(index), detail=detail)


def _kept_part(length: int, at: Placer, truncate: Truncate, limit: int) -> slice:
    """Return the part of a sequence used as given that is kept; refuse one that is too long."""
    if length <= limit:
        return slice(None)
    if truncate == "refuse":
        _refuse_length(length, limit, at())
    return slice(limit) if truncate == "right" else slice(-limit, None)


def _check_table(numbers: Sequence[int], size: int, loc: Loc) -> None:
    """Refuse a number that a table of the model has no row for."""
    if min(numbers) < 0 or max(numbers) >= size:
        place = next(at for at, number in enumerate(numbers) if not 0 <= number < size)
        detail = f"entry {place} is outside this model's table, 0 to {size - 1}"
        raise Refused.at("token_out_of_range", *loc, detail=detail, limit=size)


def _refuse_length(length: int, limit: int, loc: Loc) -> NoReturn:
    raise Refused.at("sequence_too_long", *loc, length=length, limit=limit)


def _to_vectors(embeddings: Array | Sequence[Sequence[float]] | Base64Array, at: Placer) -> Array:
    """Return embeddings as an array, (tokens, width) if all is well."""
    if isinstance(embeddings, np.ndarray):
        return embeddings
    if isinstance(embeddings, Base64Array):
        return _decode_vectors(embeddings, at)
    widths = {len(row) for row in embeddings}
    detail = f"expected rows of one width, received rows of {min(widths)} to {max(widths)}"
    raise Refused.at("shape_mismatch", *at("embeddings"), detail=detail)


def _decode_vectors(array: Base64Array, at: Placer) -> Array:
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
