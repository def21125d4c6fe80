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

from model.config import Mode
from model.loading.checkpoint import Model
from model.pooling import Pooling
from service.encode.plan import Planner
from service.encode.request import Encoding, Highlight, Pooled, Request
from service.encode.tasks import role as role_of
from service.refusals import Refused

HEADER, EXPECT = "x-headlight-space", "x-headlight-expect"
NAME = re.compile(r"s1-[0-9a-f]{16}")  # 1 is the digest's own version
DTYPES = ("float32", "bfloat16", "float16")
KEPT = 1024  # names of requests that come again
NAMELESS = (
    "vectors of changed heads, hidden states, and texts with a marker or filling are of no space"
)
UNKNOWN = (
    "which part differs is not known: the weights, the tokenizer, a dense layer, or several parts"
)

Parts = Mapping[str, Any]
Chosen = tuple[bool | Pooled, str, str | None, int | str | None, int | None]


class Spaces:
    """The spaces that one model's requests lead to.

    Args:
        dtype: in which the model computes.
        max_tokens: of a sequence.
        bound: how far two vectors of one text may lie apart, of their length.
    """

    def __init__(
        self, model: Model, planner: Planner, dtype: str, max_tokens: int, bound: float
    ) -> None:
        self._bound = bound
        self._model, self._planner = model, planner
        self._fixed: dict[str, Any] = {
            **model.made_of,
            "lower_case": model.tokenizer.lower_case,
            "max_tokens": max_tokens,
            "dtype": dtype,
        }
        self._name = lru_cache(KEPT)(lambda *chosen: name(self._of(*chosen)))

    def facts(self) -> dict[str, Any]:
        """Return what GET /info says of the space of a request that chooses nothing."""
        cut = self._cut(Request(inputs=()))
        parts = self._of(True, self._planner.prompt(None), None, cut, None)
        return {"space": name(parts), "space_parts": parts, "space_bound": self._bound}

    def parts(self, request: Request) -> Parts | None:
        """Return what decides the meaning of a request's vectors; None: they are of no space.

        Raises:
            Refused: the model has no such prompt, or no such vectors.
        """
        chosen = self._chosen(request, self._planner.adapter(request))
        return None if chosen is None else self._of(*chosen)

    def of(self, request: Request, adapter: str | None) -> str | None:
        """Name the space of the vectors that a request is answered, or that make its scores.

        None where there are none, or of no space; of a query and documents, the documents'; of
        pooled vectors with those of tokens, the pooled ones'.

        Args:
            adapter: that the request names, as its plan says.

        Raises:
            Refused: as `parts`.
        """
        scored = isinstance(request.ending, Highlight) and request.ending.way == "pooled"
        if not (isinstance(request.ending, Encoding) or scored):
            return None
        if not (request.pooled or request.tokens):
            return None
        chosen = self._chosen(request, adapter)
        found: str | None = None if chosen is None else self._name(*chosen)
        return found

    def check(self, request: Request, expected: str) -> None:
        """Refuse a request whose vectors would be of another space.

        Raises:
            Refused: says which part differs, where one alone explains it; or as `parts`.
        """
        if not NAME.fullmatch(expected):
            detail = "expected a space such as s1-0123456789abcdef, as answers have it"
            raise Refused.at("out_of_range", EXPECT, detail=detail)
        parts = self.parts(request)
        if parts is None:
            detail = f"expected {expected}, and {NAMELESS}"
            raise Refused("space_changed", detail=detail, expected=expected, changed=[])
        actual = name(parts)
        if actual == expected:
            return
        changed = [
            part for part, value in self._others(parts) if expected == name({**parts, part: value})
        ]
        which = f"the part that differs is {changed[0]}" if changed else UNKNOWN
        detail = f"expected {expected}, and these would be of {actual}: {which}"
        facts: dict[str, Any] = {"expected": expected, "actual": actual, "changed": changed}
        raise Refused("space_changed", detail=detail, **facts)

    def _chosen(self, request: Request, adapter: str | None) -> Chosen | None:
        """Return what a request chooses, as `_of` takes it; None: vectors of no space."""
        changed = request.gates or any(one.gates or one.patch for one in request.inputs)
        role = role_of(request, request.role, self._model)
        if changed or request.layers or (role and not role.plain(self._planner.longest)):
            return None
        prompt = self._planner.prompt(request.prompt_name, adapter)
        if role and role.prompt is not None and request.prompt_name is None:
            prompt = role.prompt
        return request.pooled, prompt, adapter, self._cut(request), request.most

    def _cut(self, request: Request) -> int | str | None:
        """Return how a text is cut, if at another place than behind `max_tokens`."""
        if request.documents and request.documents.most:
            return request.documents.most
        side = self._model.tokenizer.where(self._planner.cut(request))
        return side if side == "left" else None

    def _of(
        self,
        pooled: bool | Pooled,
        prompt: str,
        adapter: str | None,
        cut: int | str | None,
        most: int | None,
    ) -> Parts:
        pooling = self._planner.pooling(pooled)
        parts = {**self._fixed, **self._pooled(pooling), "prompt": prompt}
        if adapter:
            parts["adapter"] = self._model.adapters[adapter].digest
        if most is not None:
            parts["max_tokens"] = min(most, self._planner.longest)
        return parts if cut is None else {**parts, "truncate": cut}

    def _pooled(self, pooling: Pooling | None) -> Parts:
        """Return what a pooling adds; vectors of tokens have none."""
        width = self._model.config.width
        if pooling is None:
            return {"pooling": "tokens", "dense": "", "normalize": False, "dimensions": width}
        return {
            "pooling": "+".join(pooling.modes),
            "dense": self._model.made_of["dense"] if pooling.layers else "",
            "normalize": pooling.normalize,
            "dimensions": pooling.numbers(width),
        }

    def _others(self, parts: Parts) -> Iterator[tuple[str, Any]]:
        """Yield other values that a part could have had, where they are known."""
        own, longest = self._model, self._model.config.max_tokens
        most = own.pooling.size(own.config.width)
        choices: dict[str, list[Any]] = {
            "pooling": [*get_args(Mode), "+".join(own.pooling.modes), "tokens"],
            "normalize": [True, False],
            "dimensions": [*range(64, most, 64), *_powers(most), most],
            "prompt": ["", *own.prompts.texts.values(), *own.instructions.values()],
            "dtype": [*DTYPES],
            "lower_case": [True, False],
            "truncate": [None, "left"],
            "max_tokens": [*_powers(longest), longest, own.max_tokens],
        }
        if own.adapters:
            choices["adapter"] = [adapter.digest for adapter in own.adapters.values()]
        for part, values in choices.items():
            yield from ((part, value) for value in {*values} - {parts.get(part)})


def name(parts: Parts) -> str:
    """Name the space that these parts decide; None is a part that is not there."""
    known = {part: value for part, value in parts.items() if value is not None}
    written = json.dumps(known, sort_keys=True, ensure_ascii=False).encode()
    return f"s1-{hashlib.sha256(written).hexdigest()[:16]}"


def _powers(most: int) -> Iterator[int]:
    """Yield the powers of two below a number."""
    return (2**i for i in range(3, (most - 1).bit_length()))
