"""Names for vectors that may stand in one index.

A space's name is a digest of all that decides what a vector means, and of nothing that moves its
last bits: not the processor, not the kernels, not the batch, not the replica. How far two answers
of one space may lie apart is `bound`.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

from model.config import PoolingMode
from model.pooling import Pooling
from service.core import Side
from service.encode.reader import Reader
from service.encode.resolver import Resolver
from service.refusals import Refused

SPACE_HEADER, EXPECT_HEADER = "x-headlight-space", "x-headlight-expect"
SPACE_NAME = re.compile(r"s1-[0-9a-f]{16}")  # 1 is the digest's own version
SPACE_DTYPES = ("float32", "bfloat16", "float16")
KEPT_SPACES = 1024  # names of requests that come again
NO_SPACE = (
    "vectors of changed heads, hidden states, and texts with a marker or filling are of no space"
)
UNKNOWN_PART = (
    "which part differs is not known: the weights, the tokenizer, a dense layer, or several parts"
)

Parts = Mapping[str, Any]
Chosen = tuple[Pooling | None, str, str | None, int | str | None, int | None]


class Spaces:
    """The spaces of the vectors that one model makes.

    Args:
        dtype: in which the model computes.
        bound: how far two vectors of one text may lie apart, of their length.
    """

    def __init__(self, resolver: Resolver, reader: Reader, dtype: str, bound: float) -> None:
        self._bound, self._resolver, self._reader = bound, resolver, reader
        self._model = model = resolver.model
        self._fixed: dict[str, Any] = {
            **model.digest_parts,
            "lower_case": model.tokenizer.lower_case,
            "max_tokens": reader.max_tokens,
            "dtype": dtype,
        }
        self._name = lru_cache(KEPT_SPACES)(lambda *chosen: name_space(self._name_choices(*chosen)))

    def facts(self) -> dict[str, Any]:
        """Return what GET /info says of the space of a request that chooses nothing."""
        side = Side((), self._resolver.outputs(True), cut=self._resolver.cut(None))
        parts = self._name_choices(*self._side_choices(side))
        return {"space": name_space(parts), "space_parts": parts, "space_bound": self._bound}

    def parts(self, side: Side, edited: bool) -> Parts | None:
        """Return what decides the meaning of a side's vectors; None: they are of no space.

        Args:
            edited: whether heads are changed.

        Raises:
            Refused: the model has no such prompt.
        """
        return (
            None
            if self._is_nameless(side, edited)
            else self._name_choices(*self._side_choices(side))
        )

    def of(self, side: Side, edited: bool) -> str | None:
        """Name the space of a side's vectors; of the pooled ones, if there are others too.

        Args, Raises: as `parts`.
        """
        found: str | None = None
        if not self._is_nameless(side, edited):
            found = self._name(*self._side_choices(side))
        return found

    def check(self, side: Side, edited: bool, expected: str) -> None:
        """Refuse a side whose vectors would be of another space.

        Raises:
            Refused: says which part differs, where one alone explains it; or as `parts`.
        """
        if not SPACE_NAME.fullmatch(expected):
            detail = "expected a space such as s1-0123456789abcdef, as answers have it"
            raise Refused.at("out_of_range", EXPECT_HEADER, detail=detail)
        parts = self.parts(side, edited)
        if parts is None:
            detail = f"expected {expected}, and {NO_SPACE}"
            raise Refused("space_changed", detail=detail, expected=expected, changed=[])
        actual = name_space(parts)
        if actual == expected:
            return
        changed = [
            part
            for part, value in self._other_values(parts)
            if expected == name_space({**parts, part: value})
        ]
        which = f"the part that differs is {changed[0]}" if changed else UNKNOWN_PART
        detail = f"expected {expected}, and these would be of {actual}: {which}"
        facts: dict[str, Any] = {"expected": expected, "actual": actual, "changed": changed}
        raise Refused("space_changed", detail=detail, **facts)

    def _is_nameless(self, side: Side, edited: bool) -> bool:
        """Tell whether vectors are of no space."""
        role = side.role
        plain = role is None or role.changes_nothing(self._reader.max_tokens)
        return edited or bool(side.outputs.hidden) or not plain

    def _side_choices(self, side: Side) -> Chosen:
        """Return what a side chooses, as `_name_choices` takes it."""
        most = side.documents.most if side.documents else None
        cut = "left" if self._model.tokenizer.resolve_truncation(side.cut) == "left" else None
        prompt = self._reader.prompt_of(side)
        return side.outputs.pooling, prompt, side.adapter, most or cut, side.most

    def _name_choices(
        self,
        pooling: Pooling | None,
        prompt: str,
        adapter: str | None,
        cut: int | str | None,
        most: int | None,
    ) -> Parts:
        parts = {**self._fixed, **self._pooling_parts(pooling), "prompt": prompt}
        if adapter:
            parts["adapter"] = self._model.adapters[adapter].digest
        if most is not None:
            parts["max_tokens"] = min(most, self._reader.max_tokens)
        return parts if cut is None else {**parts, "truncate": cut}

    def _pooling_parts(self, pooling: Pooling | None) -> Parts:
        """Return what a pooling adds; vectors of tokens have none."""
        width = self._model.config.width
        if pooling is None:
            return {"pooling": "tokens", "dense": "", "normalize": False, "dimensions": width}
        return {
            "pooling": "+".join(pooling.modes),
            "dense": self._model.digest_parts["dense"] if pooling.layers else "",
            "normalize": pooling.normalize,
            "dimensions": pooling.vector_size(width),
        }

    def _other_values(self, parts: Parts) -> Iterator[tuple[str, Any]]:
        """Yield other values that a part could have had, where they are known."""
        own, longest = self._model, self._model.config.max_tokens
        most = own.pooling.uncut_size(own.config.width)
        choices: dict[str, list[Any]] = {
            "pooling": [*get_args(PoolingMode), "+".join(own.pooling.modes), "tokens"],
            "normalize": [True, False],
            "dimensions": [*range(64, most, 64), *_powers_of_two(most), most],
            "prompt": ["", *own.prompts.texts.values(), *own.instructions.values()],
            "dtype": [*SPACE_DTYPES],
            "lower_case": [True, False],
            "truncate": [None, "left"],
            "max_tokens": [*_powers_of_two(longest), longest, own.max_tokens],
        }
        if own.adapters:
            choices["adapter"] = [adapter.digest for adapter in own.adapters.values()]
        for part, values in choices.items():
            yield from ((part, value) for value in {*values} - {parts.get(part)})


def name_space(parts: Parts) -> str:
    """Name the space that these parts decide; None is a part that is not there."""
    known = {part: value for part, value in parts.items() if value is not None}
    written = json.dumps(known, sort_keys=True, ensure_ascii=False).encode()
    return f"s1-{hashlib.sha256(written).hexdigest()[:16]}"


def _powers_of_two(most: int) -> Iterator[int]:
    """Yield the powers of two below a number."""
    return (2**i for i in range(3, (most - 1).bit_length()))
