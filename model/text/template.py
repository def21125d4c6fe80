"""The chat template by which rerankers made of decoders join a query and a document in one text.

    <Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first
        | default("Given a web search query ..") }}
    <Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
    <Document>: ..

A template is a program; none is run here. One that only names where the texts of three roles go is
read as that, any other is refused. The text that results is tokenized as one, and each token then
belongs to the query, to the document or to the template.

Source: sentence-transformers 6.2, which has the instruction as a message of the role "system".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.errors import CheckpointError, SequenceTooLong
from model.text.frame import NO_OFFSETS, Tokenized
from model.text.pieces import CutSide, ReadTokens, share_room

MESSAGE_PLACE = re.compile(  # the expression for the text of a role
    r"\{\{\s*messages\s*\|\s*selectattr\(\s*(['\"])role\1\s*,\s*(['\"])(?:eq|equalto|==)\2\s*,"
    r"\s*(['\"])(?P<role>\w+)\3\s*\)\s*\|\s*map\(\s*attribute\s*=\s*(['\"])content\5\s*\)"
    r"\s*\|\s*first\s*(?:\|\s*default\(\s*(['\"])(?P<default>[^'\"\\]*)\6\s*\)\s*)?\}\}"
)
JINJA_MARKS = ("{{", "{%", "{#", "}}", "%}", "#}")  # refused elsewhere in a template


@dataclass(frozen=True, slots=True)
class FilledTemplate:
    """A filled template, and the characters, [start, end), of query and document in it."""

    text: str
    query: tuple[int, int]
    document: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A template with a place for the text of each role.

    Args:
        literals: the text before each place, and after the last.
        roles: of each place: query, document or system.
        defaults: of each place, the text without one of the request.
    """

    literals: tuple[str, ...]
    roles: tuple[str, ...]
    defaults: tuple[str, ...]

    @classmethod
    def parse(cls, source: str) -> "Template":
        """Parse a chat template.

        Raises:
            CheckpointError: it does more than name the places of roles, or lacks one.
        """
        # jinja drops one newline at the end
        source = source.removesuffix("\n")
        found, literals, end = list(MESSAGE_PLACE.finditer(source)), list[str](), 0
        for place in found:
            literals.append(source[end : place.start()])
            end = place.end()
        literals.append(source[end:])
        beyond = [mark for mark in JINJA_MARKS for part in literals if mark in part]
        roles = tuple(place["role"] for place in found)
        named = sorted(role for role in roles if role != "system")
        if beyond or named != ["document", "query"] or len(set(roles)) < len(roles):
            flaw = f"with {beyond[0]!r}" if beyond else f"of the roles {', '.join(roles) or 'none'}"
            raise CheckpointError(
                f"chat_template: not supported: {flaw}; a reranker's names the places of query "
                "and document, each once, and of system"
            )
        return cls(tuple(literals), roles, tuple(place["default"] or "" for place in found))

    def fill(self, query: str, document: str, instruction: str) -> FilledTemplate:
        """Fill the places with texts; an instruction of "" leaves the default."""
        texts = {"query": query, "document": document, "system": instruction}
        text, spans = "", dict[str, tuple[int, int]]()
        for literal, role, default in zip(self.literals, self.roles, self.defaults, strict=False):
            text += literal
            start = len(text)
            text += texts[role] if texts[role] or role != "system" else default
            spans[role] = start, len(text)
        return FilledTemplate(text + self.literals[-1], spans["query"], spans["document"])


def cut_filled(
    part: ReadTokens, filled: FilledTemplate, limit: int, side: CutSide | None, last: int | None
) -> Tokenized:
    """Cut both texts of a filled template to a limit; return its tokens, placed in their texts.

    Args:
        part: the tokens of the filled template.
        filled: that template.
        limit: most tokens.
        side: where the longer text is cut first; None: it is refused.
        last: how many first tokens of the document are read; None: all.

    Raises:
        SequenceTooLong: it is too long, or its template alone is.
    """
    own = [_text_of_token(offsets, filled) for offsets in part.offsets]
    places = [[at for at, text in enumerate(own) if text == index] for index in (0, 1)]
    dropped = set[int]() if last is None else set(places[1][last:])
    places[1] = places[1][:last]
    whole, added = len(own), own.count(None)
    length, room = added + sum(map(len, places)), limit - added
    if length > limit and (side is None or room < 2):
        raise SequenceTooLong(length, limit)
    for indices, count in zip(places, share_room([*map(len, places)], room), strict=True):
        dropped |= set(indices[count:] if side == "right" else indices[: len(indices) - count])
    return replace(_place_tokens(part, own, filled, dropped), length=whole)


def _text_of_token(offsets: tuple[int, int], filled: FilledTemplate) -> int | None:
    """Return a token's text: 0 for the query, 1 for the document, None for the template."""
    for index, (start, end) in enumerate((filled.query, filled.document)):
        if offsets[0] < end and offsets[1] > start:
            return index
    return None


def _place_tokens(
    part: ReadTokens, own: Sequence[int | None], filled: FilledTemplate, dropped: set[int]
) -> Tokenized:
    """Return the tokens that are not dropped, with offsets and words in their `own` texts."""
    kept = [at for at in range(len(own)) if at not in dropped]
    spans, before = (filled.query, filled.document), filled.document < filled.query
    words = [(text, word) for text, word in zip(own, part.words, strict=True) if word is not None]
    first = [next((word for text, word in words if text == index), 0) for index in (0, 1)]
    placed = Tokenized([], [], [], [], [], [], [], 0)
    segment = int(before)
    for at in kept:
        text, (start, end) = own[at], part.offsets[at]
        segment = segment if text is None else text
        word = part.words[at]
        placed.token_ids.append(part.token_ids[at])
        placed.tokens.append(part.tokens[at])
        placed.types.append(0)
        placed.segments.append(segment)
        placed.special.append(text is None)
        if text is None:
            placed.offsets.append(NO_OFFSETS)
            placed.words.append(None)
        else:
            low, high = spans[text]
            placed.offsets.append((max(start, low) - low, min(end, high) - low))
            placed.words.append(None if word is None else word - first[text])
    return placed
