"""The few fields of a SentencePiece model that its conversion needs, read from the protobuf.

ModelProto        1 pieces, 2 trainer_spec, 3 normalizer_spec
SentencePiece     1 piece, 2 score, 3 type
TrainerSpec       3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback
NormalizerSpec    2 precompiled_charsmap, 3 add_dummy_prefix, 5 escape_whitespaces

Other fields are passed over. Source: google/sentencepiece, src/sentencepiece_model.proto.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from model.errors import CheckpointError

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types
VARINT_BYTES = 10  # of the longest
UNIGRAM = 1
UNKNOWN, CONTROL, USER = 2, 3, 4  # types of pieces; a normal one is 1
Field = tuple[int, int | bytes]


@dataclass(slots=True)
class Piece:
    """One entry of the vocabulary."""

    text: str = ""
    score: float = 0.0
    type: int = 1


@dataclass(slots=True)
class SentencePiece:
    """What a model says.

    Args:
        charsmap: how characters are normalised, as `tokenizers` takes it; empty: not at all.
    """

    pieces: list[Piece] = field(default_factory=list)
    charsmap: bytes = b""


def read_sentencepiece(path: Path) -> SentencePiece:
    """Read a unigram model.

    Raises:
        CheckpointError: the file is not such a model, or asks for what the conversion leaves out.
    """
    try:
        model = _model(path.read_bytes())
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{path.name} is not a SentencePiece model: {error}") from error
    if not model.pieces:
        raise CheckpointError(f"{path.name} is not a SentencePiece model: it has no pieces")
    return model


def _model(content: bytes) -> SentencePiece:
    model, switches = SentencePiece(), {"model_type": UNIGRAM}
    names = {3: "model_type", 24: "treat_whitespace_as_suffix", 35: "byte_fallback"}
    for number, value in _fields(content):
        if number == 1:
            model.pieces.append(_piece(_bytes(value)))
        elif number == 2:
            switches |= _numbers(_bytes(value), names)
        elif number == 3:
            rule = list(_fields(_bytes(value)))
            model.charsmap = next((_bytes(v) for n, v in rule if n == 2), model.charsmap)
            rules = {3: "add_dummy_prefix", 5: "escape_whitespaces"}
            switches |= _numbers(_bytes(value), rules)
    wanted = {"model_type": UNIGRAM, "treat_whitespace_as_suffix": 0, "byte_fallback": 0}
    wanted |= {"add_dummy_prefix": 1, "escape_whitespaces": 1}
    wrong = [f"{name} {value}" for name, value in switches.items() if value != wanted[name]]
    if wrong:
        raise CheckpointError(f"a SentencePiece model with {', '.join(wrong)} is not converted")
    return model


def _piece(content: bytes) -> Piece:
    piece = Piece()
    for number, value in _fields(content):
        if number == 1:
            piece.text = _bytes(value).decode("utf-8")
        elif number == 2:
            (piece.score,) = struct.unpack("<f", _bytes(value))
        elif number == 3:
            piece.type = _number(value)
    if not math.isfinite(piece.score):
        raise ValueError(f"the score of {piece.text!r} is not finite")
    return piece


def _numbers(content: bytes, names: dict[int, str]) -> dict[str, int]:
    """Return the fields of a message that have a name here."""
    return {names[number]: _number(value) for number, value in _fields(content) if number in names}


def _fields(content: bytes) -> Iterator[Field]:
    """Yield each field of a message by its number: an integer, or the bytes of anything else."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(content, at)
        elif kind in (DOUBLE, FLOAT):
            size = 8 if kind == DOUBLE else 4
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(content) - at:
            raise ValueError("it ends in the middle of a field")
        yield number, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return an integer and the place after it."""
    number = 0
    for index, byte in enumerate(content[at : at + VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("it ends in the middle of a number")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where bytes should")
    return value


def _number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes stand where a number should")
    return value
