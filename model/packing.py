"""Sequences -> the rows of one packed batch.

All tokens of a batch lie end to end in one matrix: no padding between sequences, so no mask.
Sequences of equal length lie side by side, so that attention sees each such group as one
(sequences, tokens, ...) view of the rows, without a copy.
"""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby

import torch
from torch import Tensor

# Below 16 rows torch's matrix kernels round differently; meaningless rows fill up a short batch,
# so that a sequence has the same bits alone and among others.
FEWEST_ROWS = 16

# On a CPU every number of rows has its own matrix kernels, which take 3 to 5 ms and more than
# 2 MiB to make: meaningless rows bring a batch up to the next of so many sizes per octave.
SIZES_PER_OCTAVE = 8
FEWEST_SEPARATE_ROWS = 4  # the smallest step between two sizes

# The compiled pass needs no filling but this: a batch of one row gets a second. A slice of a single
# row's columns is contiguous, of several rows it is not, and torch has another kernel for each.
FEWEST_COMPILED_ROWS = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """The start of a pass inside a layer, before its W^O, instead of at the embeddings.

    Args:
        layer: counted from 0.
        residual: what enters the layer, (tokens, width); of a batch, (rows, width).
        mixed: the mixed values of its heads, (tokens or rows, heads * head_dim).
    """

    layer: int
    residual: Tensor
    mixed: Tensor


@dataclass(frozen=True, slots=True)
class Sequence:
    """One item of a batch: token ids, or embeddings that stand in for their look-up.

    Args:
        token_ids: (tokens,) ids, or None with embeddings.
        types: (tokens,) token types (segments); None means all 0.
        embeddings: (tokens, embedding width) float, or None with token ids.
        gates: factors of heads' mixed values, by layer and head; 1 for others.
        unseen: how many of its last tokens are hidden as keys; they attend to the others.
        patches: replacements of heads' mixed values, (tokens, head_dim), by layer and head.
        entry: where its pass begins; None: at the embeddings.
    """

    token_ids: Many[int] | None = None
    types: Many[int] | None = None
    embeddings: Tensor | None = None
    gates: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    unseen: int = 0
    patches: Mapping[int, Mapping[int, Tensor]] = field(default_factory=dict)
    entry: Entry | None = None

    def __len__(self) -> int:
        inputs = self.token_ids if self.embeddings is None else self.embeddings
        return 0 if inputs is None else len(inputs)


@dataclass(frozen=True, slots=True)
class Group:
    """`count` sequences of `length` tokens each, from row `start` on.

    Args:
        unseen: how many last tokens of each sequence are hidden as keys.
    """

    start: int
    count: int
    length: int
    unseen: int = 0

    @property
    def rows(self) -> slice:
        """Return the rows of all its sequences."""
        return slice(self.start, self.start + self.count * self.length)


@dataclass(frozen=True)  # without slots, where cached_property keeps nothing
class Packed:
    """A batch as rows; `starts[i]` is the first row of the i-th sequence in the caller's order."""

    token_ids: Tensor  # (rows,) int64; 0 where embeddings stand
    positions: Tensor  # (rows,) int64; -1 where a padding token stands
    types: Tensor  # (rows,) int64
    embeddings: tuple[tuple[slice, Tensor], ...]  # rows, (tokens, embedding width)
    groups: tuple[Group, ...]  # in the order of their rows
    starts: tuple[int, ...]
    lengths: tuple[int, ...]  # of the sequences, likewise
    # rows of a sequence, and its gates or patches
    gates: tuple[tuple[slice, Mapping[int, Mapping[int, float]]], ...] = ()
    patches: tuple[tuple[slice, Mapping[int, Mapping[int, Tensor]]], ...] = ()
    entry: Entry | None = None  # where the pass begins; None: at the embeddings

    def rows(self, index: int) -> slice:
        """Return the rows of the sequence with this index in the caller's order."""
        return slice(self.starts[index], self.starts[index] + self.lengths[index])

    @cached_property
    def sequence_bounds(self) -> Tensor:
        """Return where each sequence begins and where the last ends, (sequences + 1,) int32.

        Computed once for all layers.
        """
        edges = [*sorted(self.starts), self.groups[-1].rows.stop]
        return send(torch.tensor(edges, dtype=torch.int32), self.token_ids.device)


def pack_sequences(
    sequences: Many[Sequence], device: torch.device, pad: int | None = None, unpadded_rows: int = 0
) -> Packed:
    """Lay sequences end to end, ordered by length, filled up as `filled_rows` says.

    Args:
        sequences: all begin at the embeddings, or all with an entry in the same layer.
        pad: a token id that has no position and does not advance the others' (RoBERTa's rule,
            for ids used as given; embeddings are counted one by one).
        unpadded_rows: as of `filled_rows`.

    Example:
        >>> texts = [Sequence([101, 7, 102]), Sequence([101, 102])]
        >>> packed = pack_sequences(texts, torch.device("cpu"))
        >>> packed.starts, packed.token_ids[:5].tolist()
        ((2, 0), [101, 102, 101, 7, 102])
    """
    lengths = tuple(map(len, sequences))
    group_keys = [(length, one.unseen) for length, one in zip(lengths, sequences, strict=True)]
    order = sorted(range(len(sequences)), key=group_keys.__getitem__)
    starts = [0] * len(sequences)
    ids: list[int] = []
    positions: list[int] = []
    types: list[int] = []
    embeddings: list[tuple[slice, Tensor]] = []
    gates: list[tuple[slice, Mapping[int, Mapping[int, float]]]] = []
    patches: list[tuple[slice, Mapping[int, Mapping[int, Tensor]]]] = []
    for index in order:
        sequence, length, start = sequences[index], lengths[index], len(ids)
        starts[index], rows = start, slice(start, start + length)
        ids += [0] * length if sequence.token_ids is None else sequence.token_ids
        types += [0] * length if sequence.types is None else sequence.types
        positions += range(length) if pad is None else _token_positions(sequence, pad)
        if sequence.embeddings is not None:
            embeddings.append((rows, sequence.embeddings))
        if sequence.gates:
            gates.append((rows, sequence.gates))
        if sequence.patches:
            patches.append((rows, sequence.patches))
    fill = [0] * (filled_rows(len(ids), device, unpadded_rows) - len(ids))
    columns = array("q", ids + fill + positions + fill + types + fill)  # "q" is int64
    table = send(torch.frombuffer(columns, dtype=torch.int64), device)  # at once
    token_ids, token_positions, token_types = table.view(3, -1).unbind()
    return Packed(
        token_ids,
        token_positions,
        token_types,
        tuple(embeddings),
        _group_by_length([group_keys[index] for index in order]),
        tuple(starts),
        lengths,
        tuple(gates),
        tuple(patches),
        _join_entries([sequences[index].entry for index in order], len(fill)),
    )


def send(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device; to a GPU without a wait, from page-locked memory."""
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


def _join_entries(entries: Many[Entry | None], fill: int) -> Entry | None:
    """Join the entries of sequences in the order of their rows, with `fill` rows of zeros."""
    present = [entry for entry in entries if entry is not None]
    layers = {entry.layer for entry in present}
    if len(layers) > 1 or 0 < len(present) < len(entries):
        raise ValueError("a batch begins in one place")
    if not present:
        return None
    residual, mixed = (
        torch.cat([*parts, parts[0].new_zeros(fill, parts[0].shape[1])])
        for parts in ([entry.residual for entry in present], [entry.mixed for entry in present])
    )
    return Entry(layers.pop(), residual, mixed)


def filled_rows(tokens: int, device: torch.device, unpadded_rows: int = 0) -> int:
    """Return how many rows a batch of this many tokens is filled up to.

    Args:
        unpadded_rows: batches of up to so many tokens are filled up to two rows only.

    Example:
        >>> [filled_rows(tokens, torch.device("cpu")) for tokens in (3, 17, 41, 100, 130)]
        [16, 20, 44, 104, 144]
    """
    if tokens <= unpadded_rows:
        return max(tokens, FEWEST_COMPILED_ROWS)
    if device.type != "cpu":
        return max(tokens, FEWEST_ROWS)
    octave = 1 << (tokens.bit_length() - 1)
    step = max(octave // SIZES_PER_OCTAVE, FEWEST_SEPARATE_ROWS)
    return max(-(-tokens // step) * step, FEWEST_ROWS)


def _token_positions(sequence: Sequence, pad: int | None) -> Many[int]:
    """Return each token's position; a padding token has -1 and is not counted."""
    if sequence.token_ids is None or pad is None or pad not in sequence.token_ids:
        return range(len(sequence))
    counted = accumulate(token_id != pad for token_id in sequence.token_ids)
    pairs = zip(sequence.token_ids, counted, strict=True)
    return [-1 if token_id == pad else count - 1 for token_id, count in pairs]


def _group_by_length(ordered: list[tuple[int, int]]) -> tuple[Group, ...]:
    """Group the runs of equal (length, unseen tokens) in an ordered list."""
    groups: list[Group] = []
    start = 0
    for (length, unseen), run in groupby(ordered):
        count = len(list(run))
        groups.append(Group(start, count, length, unseen))
        start += count * length
    return tuple(groups)
