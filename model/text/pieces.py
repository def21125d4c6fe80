"""Tokenize a long text piece by piece: the tokens of the whole, and no more work than needed.

A text is cut only at a seam: a place where a word begins no matter what precedes it, for every step
of the tokenizer. Which places are seams follows from the steps; of a tokenizer with a step that is
not known here there are none, and every text is one piece. So is a text without seams, such as one
long word.
"""

import json
import re
from collections.abc import Generator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

Result = TypeVar("Result")  # of a reading
Reading = Generator[None, None, Result]  # pauses after each bounded piece of work
CutSide = Literal["right", "left"]  # the end at which tokens are cut off
Offsets = list[tuple[int, int]]  # characters, [start, end)

PIECE_CHARACTERS = 2048  # of a piece: milliseconds of work, during which nothing else runs

# What follows a seam. In BERT each of these is a word of its own, or ends one; it is of ASCII, or a
# sign that has no other form, so that no mark is cut from its letter
BERT_SEAM = re.compile(r"[ !-/:-@\[-`{-~\u4e00-\u9fff]")
BERT_SEAM_WITHOUT_SIGNS = re.compile(r"[ !-/:-@\[-`{-~]")  # without Chinese signs as words
SPACE_SEAM = re.compile(r"(?<=[0-9A-Za-z]) (?=[0-9A-Za-z])")  # a single one, which a word may keep
# normalizers that map the text on either side of a seam by itself
SEAM_SAFE_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Precompiled")
# Qwen2's words: contractions, letters with one sign before them, single digits, signs, spaces
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = {  # the pre-tokenizer step that splits them
    "type": "Split",
    "pattern": {"Regex": QWEN2_WORDS},
    "behavior": "Isolated",
    "invert": False,
}
# a normalizer that joins runs of spaces
JOINED_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def run_reading(reading: Reading[Result]) -> Result:
    """Run a reading to its end, without its pauses, and return its result."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            result: Result = end.value
            return result


@dataclass(frozen=True, slots=True)
class Seams:
    """Where the texts of one tokenizer may be cut.

    Args:
        pattern: what follows a seam; None: no seams are known.
        context: characters before a seam that are tokenized with what follows it and make one
            word: what a tokenizer does at a text's start is not done in its middle.
        added: tokens that are found in the raw text, across any seam; None: there are none.
        longest: characters of the longest added token.
    """

    pattern: re.Pattern[str] | None
    context: int
    added: re.Pattern[str] | None
    longest: int

    @classmethod
    def find_seams(cls, library: Library) -> "Seams":
        """Return the seams that the steps of a tokenizer allow."""
        pattern = _seam_pattern(
            step_settings(library.normalizer), step_settings(library.pre_tokenizer)
        )
        added = library.get_added_tokens_decoder().values()
        if library.normalizer is not None and any(token.normalized for token in added):
            pattern = None  # such tokens are found in the normalised text
        names = [token.content for token in added]
        found = re.compile("|".join(map(re.escape, names))) if names else None
        return cls(pattern, int(pattern is SPACE_SEAM), found, max(map(len, names), default=0))

    def split(self, text: str) -> Offsets:
        """Cut a text at seams into pieces, [start, stop), of PIECE_CHARACTERS or more."""
        starts = [0]
        while len(text) - starts[-1] > PIECE_CHARACTERS and (
            seam := self._next_seam(text, starts[-1] + PIECE_CHARACTERS)
        ):
            starts.append(seam)
        return list(zip(starts, [*starts[1:], len(text)], strict=True))

    def _next_seam(self, text: str, start: int) -> int | None:
        """Return the first seam from `start` on that is in no added token; None: no seam."""
        if self.pattern is None:
            return None
        for match in self.pattern.finditer(text, start):
            seam, near = match.start(), self.longest + 1
            if not (self.added and self.added.search(text, max(seam - near, 0), seam + near)):
                return seam
        return None


def step_settings(step: Any) -> Any:
    """Return the settings of a step of a tokenizer as in tokenizer.json; None: no step."""
    return step and json.loads(step.__getstate__())


def _seam_pattern(normalizer: Any, words: Any) -> re.Pattern[str] | None:
    """Return the pattern of what follows a seam, by two `step_settings`; None: unknown."""
    before, parts = _single_steps(normalizer, "normalizers"), _single_steps(words, "pretokenizers")
    berts = [step for step in before if step["type"] == "BertNormalizer"]
    others = [step for step in before if step not in berts]
    if not all(step["type"] in SEAM_SAFE_NORMALIZERS or step == JOINED_SPACES for step in others):
        return None
    if [part["type"] for part in parts] == ["BertPreTokenizer"]:
        signs = berts and berts[-1]["handle_chinese_chars"]
        return BERT_SEAM if signs else BERT_SEAM_WITHOUT_SIGNS
    if len(parts) > 1 and parts[-1]["type"] == "ByteLevel":
        parts = parts[:-1]  # words are there already, and the bytes of each are its own
    return SPACE_SEAM if parts and not berts and all(map(_splits_at_spaces, parts)) else None


def _single_steps(step: Any, name: str) -> list[Any]:
    """Return a step's settings in a list, or those of its steps under `name` if a sequence."""
    if step is None:
        return []
    if name not in step:
        return [step]
    return [single for part in step[name] for single in _single_steps(part, name)]


def _splits_at_spaces(step: Any) -> bool:
    """Tell whether a step ends a word at a single space between ASCII letters or digits."""
    switches = {"ByteLevel": "use_regex", "Metaspace": "split"}
    name = step["type"]
    whole = name in ("Whitespace", "WhitespaceSplit") or step == QWEN2_SPLIT
    return whole or bool(step.get(switches.get(name)))


@dataclass(slots=True)
class ReadTokens:
    """The tokens read of one text, without special ones; all lists have one entry per token.

    Args:
        tokens: as the vocabulary writes them.
        offsets: characters of each token in the text, [start, end).
        words: index of each token's word.
        length: tokens counted, those cut off included; of the whole text, if all was counted.
    """

    token_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    offsets: Offsets = field(default_factory=list)
    words: list[int | None] = field(default_factory=list)
    length: int = 0

    def add_piece(self, piece: "_Piece", words: int) -> None:
        """Append the tokens of the next piece, which this many words precede."""
        own, start, outside = piece.encoding, piece.start, piece.outside
        before = words - bool(outside)
        self.token_ids += own.ids[outside:]
        self.tokens += own.tokens[outside:]
        self.offsets += [(a + start, b + start) for a, b in own.offsets[outside:]]
        self.words += [None if n is None else n + before for n in own.word_ids[outside:]]

    def cut_to(self, length: int, side: CutSide) -> None:
        """Keep `length` tokens; cut the others off on this side."""
        cut = slice(length, None) if side == "right" else slice(max(len(self.tokens) - length, 0))
        del self.token_ids[cut], self.tokens[cut], self.offsets[cut], self.words[cut]

    def drop_prompt(self, prompt: int, first: int) -> None:
        """Make offsets and words relative to the text behind its prompt; the prompt has none.

        Args:
            prompt: characters of the prompt.
            first: index of the first word that reaches beyond it.
        """
        for index, ((start, end), word) in enumerate(zip(self.offsets, self.words, strict=True)):
            inside = end <= prompt
            self.offsets[index] = (0, 0) if inside else (max(0, start - prompt), end - prompt)
            self.words[index] = None if inside or word is None else word - first


def read_pieces(
    library: Library,
    seams: Seams,
    text: str,
    *,
    room: int,
    side: CutSide,
    counted: bool,
    prompt: int = 0,
) -> Reading[ReadTokens]:
    """Tokenize as much of a text as is needed.

    Args:
        room: most tokens that are kept.
        side: where others are cut off.
        counted: whether the whole text is counted; else the reading stops once there are more
            tokens than room, and the words of a text cut at its start count from the first piece
            read.
        prompt: characters of the prompt at its start.
    """
    places, kept, words, first = seams.split(text), {}, {}, 0
    order = range(len(places)) if side == "right" else reversed(range(len(places)))
    length = filled = 0
    for index in order:
        start, stop = places[index]
        if length > room and not counted:  # at `room` exactly, more may follow
            break
        context = seams.context if index else 0
        # the fast way counts tokens, but does not know words
        exact = filled < room or side == "left" or context
        encode = library.encode_batch if exact else library.encode_batch_fast
        (piece,) = encode([text[start - context : stop]], add_special_tokens=False)
        outside = _count_context(piece) if context else 0
        length += len(piece) - outside
        words[index] = _count_words(piece) - bool(outside)
        if index == 0 and prompt:
            first = _first_word(piece, prompt)
        if filled < room:
            kept[index] = _Piece(piece, start - context, outside)
            filled += len(piece) - outside
        if len(places) > 1:
            yield
    part = _join_pieces(kept, words, length)
    if prompt:
        part.drop_prompt(prompt, first)
    return part


@dataclass(slots=True)
class _Piece:
    """A piece of a text, tokenized.

    Args:
        start: index in the text of the encoding's first character.
        outside: tokens at its start that are context only: they are one word.
    """

    encoding: Encoding
    start: int
    outside: int


def _join_pieces(kept: dict[int, _Piece], words: dict[int, int], length: int) -> ReadTokens:
    """Join the pieces kept, in order; words are counts by piece."""
    part = ReadTokens(length=length)
    for index in sorted(kept):
        part.add_piece(kept[index], sum(words[before] for before in words if before < index))
    return part


def _count_context(piece: Encoding) -> int:
    """Count the tokens of the first word, which is context."""
    return next((i for i, word in enumerate(piece.word_ids) if word != 0), len(piece))


def _count_words(piece: Encoding) -> int:
    """Count the words of a piece."""
    last = piece.token_to_word(len(piece) - 1) if len(piece) else None
    return 0 if last is None else last + 1


def _first_word(piece: Encoding, prompt: int) -> int:
    """Return the index of the first word beyond a prompt, or of the next piece without one."""
    inside = zip(piece.offsets, piece.word_ids, strict=True)
    beyond = (word for (_, end), word in inside if end > prompt and word is not None)
    return next(beyond, _count_words(piece))


def share_room(lengths: Many[int], room: int) -> list[int]:
    """Divide `room` tokens among texts so that only the longer is cut until both are equal.

    The rule of the tokenizers library's "longest_first".

    Example:
        >>> share_room([10, 3], 9), share_room([10, 8], 9), share_room([9], 4)
        ([6, 3], [5, 4], [4])
    """
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    shorter, longer = sorted(lengths)
    if shorter + longer <= room:
        return list(lengths)
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return [longer, shorter] if lengths[0] > lengths[1] else [shorter, longer]
