"""Text -> ids, offsets, words, and back.

The arithmetic is the `tokenizers` library's; what a tokenizer.json stores about truncation and
padding is switched off, because the caller decides on the first and nothing here pads.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import Encoding
from tokenizers import Tokenizer as Library
from tokenizers.normalizers import Lowercase, Normalizer
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.processors import TemplateProcessing

from model.errors import CheckpointError, SequenceTooLong
from model.text import pieces
from model.text.frame import BARE_FRAME, Tokenized, find_frame, frame_parts, read_uncut
from model.text.pieces import (
    CutSide,
    Reading,
    ReadTokens,
    Seams,
    run_reading,
    share_room,
    step_settings,
)
from model.text.template import FilledTemplate, Template, cut_filled

Truncate = Literal["refuse", "right", "left"]  # what happens to a text that is too long
Truncation = Truncate | Literal["own"]  # at the side that the checkpoint names
UNUSED_CHARACTER = "\U0010ffff"  # no character, and in no vocabulary
Texts = tuple[str] | tuple[str, str]  # a text, or a pair of them


class Tokenizer:
    """The tokenizer of a checkpoint.

    Args:
        source: its tokenizer.json, or that file opened by `open_tokenizer`.
        side: where a text is cut if a request does not say; None: as the file says.
        types: whether a pair's texts are told apart by token types.
        lower_case: whether texts are lower-cased first; offsets are those of the raw text.
        template: what pairs are filled into; None: special tokens go around them.

    Raises:
        CheckpointError: the file is not a tokenizer that this library reads.
    """

    def __init__(
        self,
        source: Path | Library,
        *,
        side: CutSide | None = None,
        types: bool = True,
        lower_case: bool = False,
        template: Template | None = None,
    ) -> None:
        self.template = template
        self._library = open_tokenizer(source) if isinstance(source, Path) else source
        self.side: CutSide = side or (self._library.truncation or {}).get("direction", "right")
        self.choices: dict[str, Any] = {} if self.side == "right" else {"side": self.side}
        if self._library.post_processor is None:
            self._library.post_processor = TemplateProcessing("$A:0", "$A:0 $B:1", [])
            self.choices["post_processor"] = step_settings(self._library.post_processor)
        _check_unknown(self._library)
        self._library.no_truncation()
        self._library.no_padding()
        self.lower_case = lower_case
        if lower_case:
            self._library.normalizer = _lower_case_first(self._library.normalizer)
        self._seams = Seams.find_seams(self._library)
        self._frames = {texts: find_frame(self._library, texts) for texts in (1, 2)}
        self._untyped = not types and self._highest_type() > 0
        if self._untyped:
            self.choices["types"] = False
            self._frames = {
                texts: [replace(slot, type=0) for slot in slots]
                for texts, slots in self._frames.items()
            }
        pair = self._library.encode("", "")
        # [UNK] and [MASK] too are special to the vocabulary, but a text reads as them
        around = zip(pair.ids, pair.special_tokens_mask, strict=True)
        self.special_ids = frozenset(id for id, added in around if added)
        ends = self._library.encode("").ids[-1:]  # [CLS] [SEP], or what a family has for them
        self.separator = ends[0] if ends else None

    def __call__(
        self, texts: Many[Texts], limit: int, truncate: Truncation = "refuse", prompt: str = ""
    ) -> list[Tokenized]:
        """Tokenize texts and pairs of texts.

        Args:
            limit: most tokens of a sequence, special ones included.
            truncate: what to do beyond the limit: refuse, or cut at the end ("right"), at the start
                ("left") or at the checkpoint's side ("own"); of a pair the longer text is cut
                first.
            prompt: what goes before each text; its tokens have no place and no word, and it
                counts and is cut as the text's own. Of a pair in a template it is the instruction.

        Raises:
            SequenceTooLong: a sequence exceeds the limit and truncate is "refuse".
        """
        return run_reading(self.read_texts(texts, limit, truncate, prompt))

    def read_texts(
        self,
        texts: Many[Texts],
        limit: int,
        truncate: Truncation = "refuse",
        prompt: str = "",
        *,
        counted: bool = True,
        facts: bool = True,
        last: int | None = None,
        second_whole: bool = False,
    ) -> Reading[list[Tokenized]]:
        """Tokenize as `__call__` does, with a pause after each bounded piece of work.

        Args:
            counted: whether `length` and `words` of a lone text that is cut count what is cut off;
                else it is read as far as it is needed: the length is that of what was read, and
                the words of a text cut at its start count from there.
            facts: whether more is needed than ids, types and length; else the lists of a text that
                is not cut may be empty, which takes half the time.
            last: how many tokens of a lone text, or of a pair's second one, are read; then it is
                cut as any, but not at the start.
            second_whole: whether a pair's second text is not cut; the first keeps a token or more.
        """
        truncate = self.resolve_truncation(truncate)
        if prompt:
            texts = [
                text if self.template and len(text) == 2 else (prompt + text[0], *text[1:])
                for text in texts
            ]
        tokenized: list[Tokenized] = []
        for group, longest in _group_by_piece(texts):
            at_once = not prompt and self.template is None
            # longer ones are likely to be cut, or take long
            most = pieces.PIECE_CHARACTERS if truncate == "refuse" else limit
            at_once = at_once and longest <= most
            wholes = self._encode_batch(group, facts) if at_once else [None] * len(group)
            for text, whole in zip(group, wholes, strict=True):
                try:
                    if self.template is not None and len(text) == 2:
                        filled = self.template.fill(*text, prompt)
                        filling = self._read_filled(filled, limit, truncate, last)
                        tokenized.append((yield from filling))
                    elif (
                        whole
                        and (len(whole) <= limit or truncate == "refuse")
                        and (last is None or len(whole) <= last)
                    ):
                        tokenized.append(read_uncut(whole, limit, facts, typed=not self._untyped))
                    else:
                        cut = self._read_cut(
                            text, limit, truncate, len(prompt), counted, last, second_whole
                        )
                        tokenized.append((yield from cut))
                except SequenceTooLong as error:
                    raise SequenceTooLong(error.length, limit, len(tokenized)) from None
            yield
        return tokenized

    def resolve_truncation(self, truncate: Truncation) -> Truncate:
        """Return the truncation with "own" replaced by the checkpoint's side."""
        return self.side if truncate == "own" else truncate

    def read_whole(self, texts: Many[str], *, special: bool, most: int) -> Reading[list[Tokenized]]:
        """Tokenize texts longer than the model takes, but of at most this many tokens together.

        Args:
            special: whether special tokens are added.
            most: limit of the tokens of all texts together.

        Raises:
            SequenceTooLong: there are more; its length is what was counted until then.
        """
        tokenized, room = [], most
        for group, _ in _group_by_piece([(text,) for text in texts]):
            wholes: Many[Encoding | None] = [None] * len(group)
            plain = [text[0] for text in group]
            if not special and sum(map(len, plain)) <= pieces.PIECE_CHARACTERS:
                wholes = self._library.encode_batch(plain, add_special_tokens=False)
            for text, whole in zip(plain, wholes, strict=True):
                if whole is None:
                    part = yield from self._read_text(text, room + 1, "right", counted=False)
                    one = frame_parts([part], self._frames[1] if special else BARE_FRAME)
                else:
                    one = read_uncut(whole, most, typed=False)
                room -= len(one.token_ids)
                if room < 0:
                    raise SequenceTooLong(most - room, most)
                tokenized.append(one)
            yield
        return tokenized

    def text_of(self, token_ids: Many[int], *, special: bool) -> str:
        """Decode ids to text; skip those that the vocabulary lacks.

        Args:
            special: whether special tokens are part of the text.
        """
        # of several at once the library lets other threads of the interpreter run meanwhile
        (text,) = self._library.decode_batch([[*token_ids]], skip_special_tokens=not special)
        return str(text)

    def tokens_of(self, token_ids: Many[int]) -> list[str | None]:
        """Return the token of each id; None if the vocabulary lacks it."""
        return [*map(self._library.id_to_token, token_ids)]

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if the vocabulary lacks it."""
        return self._library.token_to_id(token)

    @property
    def unknown_token(self) -> str | None:
        """Return the token that stands for unknown words; None if the vocabulary names none."""
        return getattr(self._library.model, "unk_token", None)

    def highest_id_and_type(self) -> tuple[int, int]:
        """Return the highest token id and the highest token type that texts can get."""
        framed = [self._library.encode(""), self._library.encode("", "")]
        ids = {token_id for encoding in framed for token_id in encoding.ids}
        return max({0, *ids, *self._library.get_vocab().values()}), self._highest_type()

    def _highest_type(self) -> int:
        """Return the highest token type of a text or a pair."""
        return max(slot.type for slots in self._frames.values() for slot in slots)

    def _encode_batch(self, texts: Many[Texts], offsets: bool) -> list[Encoding]:
        """Tokenize texts and pairs at once, special tokens included; with or without offsets."""
        inputs = [text[0] if len(text) == 1 else text for text in texts]
        encode = self._library.encode_batch if offsets else self._library.encode_batch_fast
        return encode(inputs)

    def _read_filled(
        self, filled: FilledTemplate, limit: int, truncate: Truncate, last: int | None
    ) -> Reading[Tokenized]:
        """Tokenize a filled template and cut it to the limit; see `read_texts`."""
        part = yield from self._read_text(filled.text, len(filled.text) + 1, "right", counted=True)
        return cut_filled(part, filled, limit, None if truncate == "refuse" else truncate, last)

    def _read_cut(
        self,
        text: Texts,
        limit: int,
        truncate: Truncate,
        prompt: int,
        counted: bool,
        last: int | None,
        second_whole: bool,
    ) -> Reading[Tokenized]:
        """Tokenize a text or pair in pieces and cut it; `prompt` is its prompt's characters."""
        added = self._library.num_special_tokens_to_add(len(text) == 2)
        keeps_start = last is not None and len(text) == 1
        side: CutSide = "left" if truncate == "left" and not keeps_start else "right"
        room = limit - added
        counted = counted or truncate == "refuse" or len(text) == 2 or room < 1
        parts = []
        for index, one in enumerate(text):
            inside = 0 if index else prompt
            reading = self._read_text(one, max(room, 1), side, counted=counted, prompt=inside)
            parts.append((yield from reading))
        lengths = [part.length for part in parts]
        whole = sum(lengths) + added
        if last is not None:
            lengths[-1] = min(lengths[-1], last)
        length = sum(lengths) + added
        least = lengths[-1] + 1 if second_whole else len(parts)  # tokens that are not cut
        if length > limit and (truncate == "refuse" or room < least):
            raise SequenceTooLong(length, limit)
        shares = [room - lengths[-1], lengths[-1]] if second_whole else share_room(lengths, room)
        for part, share in zip(parts, shares, strict=True):
            part.cut_to(share, side)
        return replace(frame_parts(parts, self._frames[len(parts)]), length=whole)

    def _read_text(
        self, text: str, room: int, side: CutSide, **options: Any
    ) -> Reading[ReadTokens]:
        """Tokenize one text; see pieces.read_pieces."""
        return pieces.read_pieces(self._library, self._seams, text, room=room, side=side, **options)


def open_tokenizer(path: Path) -> Library:
    """Open a tokenizer.json by the tokenizers library.

    Raises:
        CheckpointError: it is not a tokenizer that this library reads.
    """
    try:
        return Library.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path.name} cannot be read: {error}") from error


def _check_unknown(library: Library) -> None:
    """Refuse a tokenizer whose model fails on an unknown word."""
    try:
        library.model.tokenize(UNUSED_CHARACTER)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"the tokenizer has nothing for an unknown word: {error}") from error


def _lower_case_first(normalizer: Normalizer | None) -> Normalizer:
    """Return a normaliser that lower-cases first, as sentence-transformers builds it.

    One with a Lowercase among its steps is left as it is.
    """
    if normalizer is None:
        return Lowercase()
    steps: list[Normalizer] = [normalizer]
    if isinstance(normalizer, Normalizers):
        steps = [normalizer[index] for index in range(len(normalizer))]
    if any(isinstance(step, Lowercase) for step in steps):
        return normalizer
    return Normalizers([Lowercase(), *steps])


def _group_by_piece(texts: Many[Texts]) -> Iterator[tuple[list[Texts], int]]:
    """Yield texts in order, in groups of about PIECE_CHARACTERS together, with the most of one."""
    group: list[Texts] = []
    characters = longest = 0
    for text in texts:
        size = sum(map(len, text))
        if group and characters + size > pieces.PIECE_CHARACTERS:
            yield group, longest
            group, characters, longest = [], 0, 0
        group.append(text)
        characters, longest = characters + size, max(longest, size)
    if group:
        yield group, longest
