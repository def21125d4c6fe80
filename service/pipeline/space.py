"""Names the space of vectors: vectors of one space may stand in one index.

A space's name is a digest of all that decides what a vector means, and of nothing that changes only
its last bits: not the processor, the kernels, the batch or the replica. How far two vectors of one
text and space may lie apart is `bound`.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

from model.config import PoolingMode
from model.pooling import Pooling
from service.pipeline.find.resolver import Resolver
from service.pipeline.reader import Reader
from service.shapes.side import Side
from service.tables.refusals import Refused

EXPECT_HEADER = "x-headlight-expect"  # names the space that a request expects
SPACE_NAME = re.compile(r"s1-[0-9a-f]{16}")  # 1 is the version of what is digested
SPACE_DTYPES = ("float32", "bfloat16", "float16")  # number formats of a model
KEPT_SPACES = 1024  # names cached, by what a request chooses
NO_SPACE = (
    "vectors of changed heads, hidden states, and texts with a marker or filling are of no space"
)
UNKNOWN_PART = "the difference is not known: the weights, the tokenizer, a dense layer or more"

Parts = Mapping[str, Any]  # what decides the meaning of a vector, by name
# What a request chooses of it: pooling, prompt, adapter, truncation and maximum of tokens
Chosen = tuple[Pooling | None, str, str | None, int | str | None, int | None]


class Spaces:
    """The spaces of the vectors that one model makes.

    Args:
        dtype: number format in which the model computes.
        bound: largest distance of two vectors of one text, as a share of their length.
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
        """Return the space of a request that chooses nothing, as GET /info shows it."""
        side = Side((), self._resolver.outputs(True), cut=self._resolver.cut(None))
        parts = self._name_choices(*self._side_choices(side))
        return {"space": name_space(parts), "space_parts": parts, "space_bound": self._bound}

    def parts(self, side: Side, edited: bool) -> Parts | None:
        """Return what decides the meaning of a side's vectors; None: they are of no space.

        Args:
            edited: whether heads are gated or patched.

        Raises:
            Refused: the model has no such prompt.
        """
        if self._is_nameless(side, edited):
            return None
        return self._name_choices(*self._side_choices(side))

    def of(self, side: Side, edited: bool) -> str | None:
        """Return the name of the space of a side's vectors; if of several kinds, of the pooled.

        Args, Raises: as `parts`.
        """
        name: str | None = None
        if not self._is_nameless(side, edited):
            name = self._name(*self._side_choices(side))
        return name

    def check(self, side: Side, edited: bool, expected: str) -> None:
        """Refuse a side whose vectors would not be of the expected space.

        Raises:
            Refused: it says which part differs, if a single one explains it; or as `parts`.
        """
        if not SPACE_NAME.fullmatch(expected):
            detail = "expected a space such as s1-0123456789abcdef, as answers have it"
            raise Refused.at("out_of_range", EXPECT_HEADER, detail=detail)
        parts = self.parts(side, edited)
        if parts is None:
            detail = f"the request expects {expected}, and {NO_SPACE}"
            raise Refused("space_changed", detail=detail, expected=expected, changed=[])
        actual = name_space(parts)
        if actual == expected:
            return
        changed = [
            part
            for part, value in self._other_values(parts)
            if expected == name_space({**parts, part: value})
        ]
        which = f"the difference is {changed[0]}" if changed else UNKNOWN_PART
        detail = f"the request expects {expected}, and this model gives {actual}; {which}"
        facts: dict[str, Any] = {"expected": expected, "actual": actual, "changed": changed}
        raise Refused("space_changed", detail=detail, **facts)

    def _is_nameless(self, side: Side, edited: bool) -> bool:
        """Tell whether a side's vectors are of no space: heads edited, hidden states, a marker."""
        role = side.role
        plain = role is None or role.changes_nothing(self._reader.max_tokens)
        return edited or bool(side.outputs.hidden) or not plain

    def _side_choices(self, side: Side) -> Chosen:
        """Return the parts that a side chooses, as arguments of `_name_choices`."""
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
        """Return all parts by name, the model's own and those chosen; see Chosen."""
        parts = {**self._fixed, **self._pooling_parts(pooling), "prompt": prompt}
        if adapter:
            parts["adapter"] = self._model.adapters[adapter].digest
        if most is not None:
            parts["max_tokens"] = min(most, self._reader.max_tokens)
        return parts if cut is None else {**parts, "truncate": cut}

    def _pooling_parts(self, pooling: Pooling | None) -> Parts:
        """Return the parts that a pooling decides; None: those of token vectors."""
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
        """Yield the name of a part with another value that it might have had, for each known."""
        model, longest = self._model, self._model.config.max_tokens
        size = model.pooling.uncut_size(model.config.width)
        choices: dict[str, list[Any]] = {
            "pooling": [*get_args(PoolingMode), "+".join(model.pooling.modes), "tokens"],
            "normalize": [True, False],
            "dimensions": [*range(64, size, 64), *_powers_of_two(size), size],
            "prompt": ["", *model.prompts.texts.values(), *model.instructions.values()],
            "dtype": [*SPACE_DTYPES],
            "lower_case": [True, False],
            "truncate": [None, "left"],
            "max_tokens": [*_powers_of_two(longest), longest, model.max_tokens],
        }
        if model.adapters:
            choices["adapter"] = [adapter.digest for adapter in model.adapters.values()]
        for part, values in choices.items():
            yield from ((part, value) for value in {*values} - {parts.get(part)})


def name_space(parts: Parts) -> str:
    """Return the name of the space that these parts decide; a part that is None is left out."""
    present = {part: value for part, value in parts.items() if value is not None}
    text = json.dumps(present, sort_keys=True, ensure_ascii=False).encode()
    return f"s1-{hashlib.sha256(text).hexdigest()[:16]}"


def _powers_of_two(end: int) -> Iterator[int]:
    """Yield the powers of two from 8 to below `end`."""
    return (2**i for i in range(3, (end - 1).bit_length()))
