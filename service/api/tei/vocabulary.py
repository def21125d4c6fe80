"""The tokenizer by itself, without the model: text -> tokens, ids -> text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.errors import SequenceTooLong
from model.text.frame import Tokenized
from service.encode.aside import Steps
from service.refusals import Refused
from service.settings import Settings

if TYPE_CHECKING:  # the table of operations needs no torch
    from service.encode.inputs import Reader


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a text, as POST /tokenize answers it.

    Args:
        text: its characters there; of a special token, its name.
        start, stop: where they stand in prompt and text together, characters, [start, stop); None
            of a special token.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Vocabulary:
    """What a replica says of tokens; a sequence may be longer here than the model takes."""

    def __init__(self, reader: "Reader", settings: Settings) -> None:
        self._reader, self._settings = reader, settings

    async def tokenize(
        self, texts: Sequence[str], prompt_name: str | None, deadline: float, *, special: bool
    ) -> list[list[Piece]]:
        """The tokens of each text behind its prompt.

        Args:
            deadline: when the answer must be there, on time.monotonic's clock.
            special: whether special tokens are added.

        Raises:
            Refused: nothing or too much is asked, there is no such prompt, or it is too busy.
        """
        self._check_count("inputs", texts)
        for index, text in enumerate(texts):
            self._check_text(text, index)
        prompt = self._reader.prompt(prompt_name)
        whole = [prompt + text for text in texts]
        steps, characters = self._tokenize(whole, special), sum(map(len, whole))
        return await self._reader.aside.run(steps, deadline, characters)

    async def decode(
        self, sequences: Sequence[Sequence[int]], deadline: float, *, special: bool
    ) -> list[str]:
        """The text of each sequence of token ids.

        Args:
            deadline: when the answer must be there, on time.monotonic's clock.
            special: whether special tokens are part of it.

        Raises:
            Refused: nothing or too much is asked, the vocabulary lacks an id, or it is too busy.
        """
        self._check_count("ids", sequences)
        self._check_tokens(sum(map(len, sequences)))
        for index, ids in enumerate(sequences):
            self._check_ids(ids, index)
        steps, size = self._decode(sequences, special), sum(map(len, sequences))
        return await self._reader.aside.run(steps, deadline, size)

    def _tokenize(self, texts: Sequence[str], special: bool) -> Steps[list[list[Piece]]]:
        limit = self._settings.max_request_tokens
        try:
            tokenized = yield from self._reader.tokenizer.whole(texts, special=special, most=limit)
        except SequenceTooLong as error:
            least = error.length
            detail = f"it holds at least {least:,}, and the limit is {limit:,}"
            raise Refused(
                "too_many_tokens", detail=detail, tokens_at_least=least, limit=limit
            ) from None
        pieces = []
        for text, tokens in zip(texts, tokenized, strict=True):
            pieces.append(list(_pieces(text, tokens)))
            yield
        return pieces

    def _decode(self, sequences: Sequence[Sequence[int]], special: bool) -> Steps[list[str]]:
        texts = []
        for index, ids in enumerate(sequences):
            self._check_known(ids, index)
            texts.append(self._reader.tokenizer.text(ids, special=special))
            yield
        return texts

    def _check_count(self, field: str, inputs: Sequence[object]) -> None:
        if not inputs:
            raise Refused.at("batch_empty", field, detail="expected one or more, received none")
        if len(inputs) > (limit := self._settings.max_sequences):
            detail = f"expected at most {limit:,}, received {len(inputs):,}"
            raise Refused.at("batch_too_large", field, detail=detail, limit=limit)

    def _check_text(self, text: str, index: int) -> None:
        limit = self._settings.max_text_characters
        if not text:
            raise Refused.at("sequence_empty", "inputs", index, detail="received an empty string")
        if len(text) > limit:
            raise Refused.at("text_too_long", "inputs", index, length=len(text), limit=limit)

    def _check_ids(self, ids: Sequence[int], index: int) -> None:
        size = self._reader.config.vocabulary
        if not ids:
            raise Refused.at("sequence_empty", "ids", index, detail="received an empty list")
        if min(ids) < 0 or max(ids) >= size:
            detail = f"expected ids from 0 to {size - 1}"
            raise Refused.at("token_out_of_range", "ids", index, detail=detail, limit=size)

    def _check_known(self, ids: Sequence[int], index: int) -> None:
        size, tokenizer = self._reader.config.vocabulary, self._reader.tokenizer
        if any(tokenizer.token(id) is None for id in set(ids)):
            detail = f"the tokenizer has no token for one of the ids, though it is below {size}"
            raise Refused.at("token_out_of_range", "ids", index, detail=detail, limit=size)

    def _check_tokens(self, tokens: int) -> None:
        limit = self._settings.max_request_tokens
        if tokens > limit:
            detail = f"it holds {tokens:,}, and the limit is {limit:,}"
            raise Refused("too_many_tokens", detail=detail, tokens=tokens, limit=limit)


def _pieces(text: str, tokens: Tokenized) -> Iterator[Piece]:
    """The tokens of a text."""
    columns = (tokens.token_ids, tokens.tokens, tokens.special, tokens.offsets)
    for id, token, special, (start, stop) in zip(*columns, strict=True):
        if special:
            yield Piece(id, token, True, None, None)
        else:
            yield Piece(id, text[start:stop], False, start, stop)
