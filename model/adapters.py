"""LoRA: what adapters add to an encoder's linears, for all rows of a batch or for some of them.

    y = x W^T + b + (x A^T) B^T    A of (rank, inputs), B of (outputs, rank), already scaled
    y = E[i] + A[i] B              of a table E: A of (rows, rank), B of (rank, width)

W is never changed, so any number of adapters share it, and rows of several stand in one batch: each
adapter's products take its own rows alone. Source: Hu et al. 2021, "LoRA", section 4.1.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import MultiHeadAttention
from model.config import Activation
from model.encoder import Embeddings, Encoder, Layer, TableLookUp
from model.kernels import ACTIVATIONS, Linear, NormedLinear
from model.packing import Packed, filled_rows

# a layer of its own, counted from 0, and a linear of it: project, output, up or down
LinearKey = tuple[int, str]
TableName = Literal["word", "type"]
TABLE_NAMES: tuple[TableName, ...] = ("word", "type")


# Rows at a time to which an adapter adds: more do not stay in the cache between product and sum.
BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a batch.

    Args:
        index: their numbers, then that of the first until there are as many as `filled` says.
        count: how many there are without those.
    """

    index: Tensor
    count: int

    @property
    def unfilled(self) -> Tensor:
        return self.index[: self.count]

    def gather(self, x: Tensor) -> Tensor:
        """Return these rows of x, filled up."""
        return x.index_select(0, self.index)

    def scatter(self, filled: Tensor, y: Tensor) -> None:
        """Write what was found of these rows, filled up, into y."""
        y.index_copy_(0, self.unfilled, filled[: self.count])


@dataclass(frozen=True, slots=True)
class LinearTerm:
    """What an adapter adds to one linear.

    Args:
        narrow: A, without bias.
        widen: B times the adapter's scale, without bias.
    """

    narrow: Linear
    widen: Linear

    def add(self, x: Tensor, y: Tensor, rows: Rows | None) -> None:
        """Add (x A^T) B^T to these rows of y, or to all, (rows, outputs), in place."""
        narrow = self.narrow(x if rows is None else rows.gather(x))
        for block in _row_blocks(narrow):
            added = self.widen(narrow[block])
            if rows is None:
                y[block].add_(added)
            else:
                own = rows.unfilled[block]
                y.index_add_(0, own, added[: len(own)])

    def weight(self) -> Tensor:
        """Return B A, (outputs, inputs)."""
        return self.widen.weight() @ self.narrow.weight()


# No two have a row in common. Rows of None are all, and then there is no other; a term of None adds
# nothing to its rows.
RowTerms = Sequence[tuple[Rows | None, LinearTerm | None]]


class AdaptedLinear:
    """A linear to which adapters add, each in its own rows."""

    def __init__(self, base: Linear, terms: RowTerms) -> None:
        self._base, self._terms, self.bias = base, terms, base.bias

    def __call__(self, x: Tensor) -> Tensor:
        return self._add_terms(x, self._base(x))

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return the activation of all; rows without a term have the fused product's bits."""
        bare = [rows for rows, term in self._terms if rows is not None and term is None]
        if 2 * sum(rows.count for rows in bare) > len(x):  # the fewer rows are multiplied twice
            return self._activate_fused(x, activation)
        y = _activate_in_place(ACTIVATIONS[activation], self(x))
        for rows in bare:
            rows.scatter(self._base.activate(rows.gather(x), activation), y)
        return y

    def _activate_fused(self, x: Tensor, activation: Activation) -> Tensor:
        """Return the fused product of all rows, and over it what those with terms have."""
        y = self._base.activate(x, activation)
        for rows, term in self._terms:
            if rows is not None and term is not None:
                own = AdaptedLinear(self._base, [(None, term)])
                rows.scatter(ACTIVATIONS[activation](own(rows.gather(x))), y)
        return y

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return all that is added to `residual`, (rows, outputs)."""
        return self._add_terms(x, self._base.add_to(x, residual))

    def weight(self) -> Tensor:
        """Return W + B A, (outputs, inputs)."""
        rows, term = self._terms[0]
        if rows is not None or term is None:
            raise RuntimeError("the weight of rows of several adapters: this is a bug")
        weight = self._base.weight()
        return weight + term.weight().to(weight)

    def _add_terms(self, x: Tensor, y: Tensor) -> Tensor:
        """Add each term to its rows of y, in place."""
        for rows, term in self._terms:
            if term is not None:
                term.add(x, y, rows)
        return y


@dataclass(frozen=True, slots=True)
class TableTerm:
    """What an adapter adds to the rows of one table.

    Args:
        narrow: A, (rows, rank).
        widen: B transposed times the adapter's scale, without bias.
    """

    narrow: Tensor
    widen: Linear

    def add(self, ids: Tensor, y: Tensor) -> Tensor:
        """Return y + A[ids] B, (ids, width)."""
        return self.widen.add_to(F.embedding(ids, self.narrow), y)


class AdaptedTable:
    """A table to whose rows adapters add, each in its own rows of a batch.

    Args:
        terms: as of AdaptedLinear.
    """

    def __init__(self, base: TableLookUp, terms: Sequence[tuple[Rows | None, TableTerm]]) -> None:
        self._base, self._terms = base, terms

    def __call__(self, ids: Tensor) -> Tensor:
        y = self._base(ids)
        for rows, term in self._terms:
            if rows is None:
                return term.add(ids, y)
            y[rows.unfilled] = term.add(ids[rows.index], y[rows.index])[: rows.count]
        return y


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter over a loaded encoder.

    Args:
        digest: `sha256:` and 12 hex digits over the model's digest and the adapter's files.
        terms: what it adds to linears, by place.
        tables: what it adds to tables, by name.
        encoder: the model's with it in all rows; its linears' weights are W + B A.
        products: numbers in A and B that rows are multiplied by, once for each layer that does it.
    """

    digest: str
    terms: Mapping[LinearKey, LinearTerm]
    tables: Mapping[TableName, TableTerm]
    encoder: Encoder
    products: int

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        digest: str,
        terms: Mapping[LinearKey, LinearTerm],
        tables: Mapping[TableName, TableTerm] = MappingProxyType({}),
    ) -> "Adapter":
        """Return an adapter of these terms over an encoder."""
        repeats = encoder.config.layers // encoder.config.own_layers
        sizes = [
            linear.weight().numel()
            for term in terms.values()
            for linear in (term.narrow, term.widen)
        ]
        products = repeats * sum(sizes) + sum(t.widen.weight().numel() for t in tables.values())
        view = _adapt_layers(encoder, lambda place: [(None, terms.get(place))])
        view.embeddings = _adapt_embeddings(
            encoder, {name: [(None, t)] for name, t in tables.items()}
        )
        return cls(digest, terms, tables, view, products)


def _row_blocks(rows: Tensor) -> Iterator[slice]:
    """Yield rows in turn; on a GPU all at once."""
    size = BLOCK_ROWS if rows.device.type == "cpu" else len(rows)
    for first in range(0, len(rows), size):
        yield slice(first, first + size)


def _activate_in_place(act: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """Return the activation of y, in its place."""
    for block in _row_blocks(y):
        y[block].copy_(act(y[block]))
    return y


def mix_adapters(encoder: Encoder, packed: Packed, adapters: Sequence[Adapter | None]) -> Encoder:
    """Return an encoder that runs one batch, each sequence with its own adapter.

    Args:
        adapters: of each sequence in the order given to `pack`; None: none.
    """
    numbers = defaultdict[Adapter | None, list[int]](list)
    for place, adapter in enumerate(adapters):
        rows = packed.rows(place)
        numbers[adapter] += range(rows.start, rows.stop)
    parts = [(one, fill_rows(own, encoder.device)) for one, own in numbers.items()]
    changed = _adapt_layers(
        encoder,
        lambda place: [(rows, one.terms.get(place) if one else None) for one, rows in parts],
    )
    tables = {
        name: [(rows, one.tables[name]) for one, rows in parts if one and name in one.tables]
        for name in TABLE_NAMES
    }
    changed.embeddings = _adapt_embeddings(encoder, tables)
    return changed


def _adapt_embeddings(
    encoder: Encoder, terms: Mapping[TableName, Sequence[tuple[Rows | None, TableTerm]]]
) -> Embeddings:
    """Return embeddings that share all but the look-ups that terms are added to."""
    changed = copy.copy(encoder.embeddings)
    if own := terms.get("word"):
        changed.of_word = AdaptedTable(changed.of_word, own)
    if changed.of_type is not None and (own := terms.get("type")):
        changed.of_type = AdaptedTable(changed.of_type, own)
    return changed


def fill_rows(numbers: list[int], device: torch.device) -> Rows:
    """Repeat the first row up to the number that a batch has, so that products have its bits."""
    fill = [numbers[0]] * (filled_rows(len(numbers), device) - len(numbers))
    return Rows(torch.tensor(numbers + fill, device=device), len(numbers))


def _adapt_layers(encoder: Encoder, terms: Callable[[LinearKey], RowTerms]) -> Encoder:
    """Return an encoder that shares all but the linears that terms are added to."""
    changed, own = copy.copy(encoder), encoder.config.own_layers
    changed.native = None  # it runs the encoder's own linears
    layers = [_adapt_layer(layer, i, terms) for i, layer in enumerate(encoder.layers[:own])]
    changed.layers = layers * (len(encoder.layers) // own)
    return changed


def _adapt_layer(layer: Layer, i: int, terms: Callable[[LinearKey], RowTerms]) -> Layer:
    changed = copy.copy(layer)
    attention: MultiHeadAttention = copy.copy(layer.attention)
    attention.__dict__.pop("output_triangles", None)  # they are those of the weights before
    changed.attention = attention
    for owner, name in (
        (attention, "project"),
        (attention, "output"),
        (changed, "up"),
        (changed, "down"),
    ):
        own = terms((i, name))
        if any(term for _, term in own):
            setattr(owner, name, _adapt_linear(getattr(owner, name), own))
    return changed


def _adapt_linear(linear: Linear, terms: RowTerms) -> Linear:
    if isinstance(linear, NormedLinear):  # what is added is normalised with the rest
        inner = AdaptedLinear(linear.linear, terms)
        return NormedLinear(inner, linear.norm, linear.eps, linear.kind)
    return AdaptedLinear(linear, terms)
