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

from model.attention.attention import MultiHeadAttention
from model.config import Activation
from model.encoder import Embeddings, Encoder, Layer, TableLookUp
from model.kernels import Linear, NormedLinear
from model.packing import Packed, filled_rows
from model.steady import ACTIVATIONS

# a layer with weights of its own, counted from 0, and a linear of it: project, output, up or down
LinearKey = tuple[int, str]
TableName = Literal["word", "type"]  # an embedding table
TABLE_NAMES: tuple[TableName, ...] = ("word", "type")  # all of them

# Rows an adapter adds to at a time: more do not stay in the cache between product and sum.
BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a batch.

    Args:
        index: their numbers, padded with the first one up to `filled_rows` of them.
        count: how many there are without the padding.
    """

    index: Tensor
    count: int

    @property
    def unfilled(self) -> Tensor:
        """Return the numbers without the padding, (count,)."""
        return self.index[: self.count]

    def gather(self, x: Tensor) -> Tensor:
        """Return these rows of x, padding included, (padded rows, width of x)."""
        return x.index_select(0, self.index)

    def scatter(self, filled: Tensor, y: Tensor) -> None:
        """Write results of `gather`'s rows back into y, without the padding."""
        y.index_copy_(0, self.unfilled, filled[: self.count].to(y))


@dataclass(frozen=True, slots=True)
class LinearTerm:
    """The product that an adapter adds to the output of one linear.

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


# The term of each group of rows; no two groups share a row. Rows None: all rows, in a single group;
# term None: nothing is added.
RowTerms = Sequence[tuple[Rows | None, LinearTerm | None]]


class AdaptedLinear:
    """A linear to which adapters add, each in its own rows; see RowTerms."""

    def __init__(self, base: Linear, terms: RowTerms) -> None:
        self._base, self._terms, self.bias = base, terms, base.bias

    def __call__(self, x: Tensor) -> Tensor:
        return self._add_terms(x, self._base(x))

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return activation(linear); rows without a term get the fused product's bits."""
        bare = [rows for rows, term in self._terms if rows is not None and term is None]
        if 2 * sum(rows.count for rows in bare) > len(x):  # the fewer rows are multiplied twice
            return self._activate_fused(x, activation)
        y = _activate_in_place(ACTIVATIONS[activation], self(x))
        for rows in bare:
            rows.scatter(self._base.activate(rows.gather(x), activation), y)
        return y

    def _activate_fused(self, x: Tensor, activation: Activation) -> Tensor:
        """Run the fused product on all rows, then overwrite those with a term."""
        y = self._base.activate(x, activation)
        for rows, term in self._terms:
            if rows is not None and term is not None:
                own = AdaptedLinear(self._base, [(None, term)])
                rows.scatter(ACTIVATIONS[activation](own(rows.gather(x))), y)
        return y

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the linear's output, terms included, plus `residual`, (rows, outputs)."""
        return self._add_terms(x, self._base.add_to(x, residual))

    def weight(self) -> Tensor:
        """Return W + B A, (outputs, inputs), where one term is added to all rows."""
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
    """The product that an adapter adds to the rows of one embedding table.

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
    """An embedding table to which adapters add, each in its own rows of a batch.

    Args:
        terms: the rows of each adapter, None: all, and what it adds.
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
        terms: what it adds to linears, by layer and linear.
        tables: what it adds to embedding tables, by name.
        encoder: the model's encoder with the adapter in all rows; its weights are W + B A.
        products: multiplications by A and B that a row takes in a pass.
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
        view = _adapt_layers(encoder, lambda key: [(None, terms.get(key))])
        view.embeddings = _adapt_embeddings(
            encoder, {name: [(None, t)] for name, t in tables.items()}
        )
        return cls(digest, terms, tables, view, products)


def _row_blocks(rows: Tensor) -> Iterator[slice]:
    """Yield slices of BLOCK_ROWS rows; on a GPU one slice of all."""
    size = BLOCK_ROWS if rows.device.type == "cpu" else len(rows)
    for first in range(0, len(rows), size):
        yield slice(first, first + size)


def _activate_in_place(act: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """Overwrite y with its activation, and return it."""
    for block in _row_blocks(y):
        y[block].copy_(act(y[block]))
    return y


def mix_adapters(encoder: Encoder, packed: Packed, adapters: Sequence[Adapter | None]) -> Encoder:
    """Return an encoder for this one batch that applies to each sequence its adapter.

    Args:
        adapters: of each sequence, in the order in which they were packed; None: no adapter.
    """
    numbers = defaultdict[Adapter | None, list[int]](list)
    for index, adapter in enumerate(adapters):
        rows = packed.rows(index)
        numbers[adapter] += range(rows.start, rows.stop)
    parts = [(adapter, fill_rows(own, encoder.device)) for adapter, own in numbers.items()]
    mixed = _adapt_layers(
        encoder,
        lambda key: [
            (rows, adapter.terms.get(key) if adapter else None) for adapter, rows in parts
        ],
    )
    tables = {
        name: [(rows, one.tables[name]) for one, rows in parts if one and name in one.tables]
        for name in TABLE_NAMES
    }
    mixed.embeddings = _adapt_embeddings(encoder, tables)
    return mixed


def _adapt_embeddings(
    encoder: Encoder, terms: Mapping[TableName, Sequence[tuple[Rows | None, TableTerm]]]
) -> Embeddings:
    """Copy the embeddings, with adapters in their look-ups; all else is shared."""
    adapted = copy.copy(encoder.embeddings)
    if own_terms := terms.get("word"):
        adapted.of_word = AdaptedTable(adapted.of_word, own_terms)
    if adapted.of_type is not None and (own_terms := terms.get("type")):
        adapted.of_type = AdaptedTable(adapted.of_type, own_terms)
    return adapted


def fill_rows(numbers: list[int], device: torch.device) -> Rows:
    """Return these rows, padded to a batch's size so that products have the same bits."""
    fill = [numbers[0]] * (filled_rows(len(numbers), device) - len(numbers))
    return Rows(torch.tensor(numbers + fill, device=device), len(numbers))


def _adapt_layers(encoder: Encoder, terms: Callable[[LinearKey], RowTerms]) -> Encoder:
    """Copy an encoder, with terms in the linears that have some; all else is shared."""
    adapted, own = copy.copy(encoder), encoder.config.own_layers
    adapted.native = None  # it would ignore the terms
    layers = [_adapt_layer(layer, i, terms) for i, layer in enumerate(encoder.layers[:own])]
    adapted.layers = layers * (len(encoder.layers) // own)
    return adapted


def _adapt_layer(layer: Layer, i: int, terms: Callable[[LinearKey], RowTerms]) -> Layer:
    """Copy layer i as `_adapt_layers` copies the encoder."""
    adapted = copy.copy(layer)
    attention: MultiHeadAttention = copy.copy(layer.attention)
    attention.__dict__.pop("output_triangles", None)  # cached from the weights without terms
    adapted.attention = attention
    for owner, name in (
        (attention, "project"),
        (attention, "output"),
        (adapted, "up"),
        (adapted, "down"),
    ):
        own_terms = terms((i, name))
        if any(term for _, term in own_terms):
            setattr(owner, name, _adapt_linear(getattr(owner, name), own_terms))
    return adapted


def _adapt_linear(linear: Linear, terms: RowTerms) -> Linear:
    """Return a linear with terms; one with a norm gets them before the norm."""
    if isinstance(linear, NormedLinear):
        inner = AdaptedLinear(linear.linear, terms)
        return NormedLinear(inner, linear.norm, linear.eps, linear.kind)
    return AdaptedLinear(linear, terms)
