"""Encoded examples side by side, as the head reads them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

BATCH = 32  # sequences


class Read(NamedTuple):
    """What the head reads of an example.

    Args:
        states: of the encoder's last layer, (tokens, width) float16.
        kind: of the question, as laya counts them.
        markers: places of the options' mask tokens.
        closing: place of the [SEP] between the options and the state.
        answer: the right option.
    """

    states: Tensor
    kind: int
    markers: Sequence[int]
    closing: int
    answer: int


class Batch(NamedTuple):
    """Examples side by side.

    Args:
        states: (batch, tokens, width).
        keep: which tokens are no padding, (batch, tokens).
        kinds: (batch,).
        markers: -1 for padding, (batch, options).
        answers: (batch,).
        own: 1 for the tokens of each option, (batch, options, tokens).
        of_state: 1 for the tokens of the state, (batch, tokens).
    """

    states: Tensor
    keep: Tensor
    kinds: Tensor
    markers: Tensor
    answers: Tensor
    own: Tensor
    of_state: Tensor


def batches(reads: Sequence[Read], shuffle: bool = False) -> Iterator[Batch]:
    """Yield examples of about the same length side by side."""
    moved = torch.rand(len(reads)) * 12 if shuffle else torch.zeros(len(reads))  # tokens
    order = sorted(range(len(reads)), key=lambda place: len(reads[place].states) + moved[place])
    starts = range(0, len(order), BATCH)
    turns = torch.randperm(len(starts)).tolist() if shuffle else range(len(starts))
    for turn in turns:
        yield put_together([reads[place] for place in order[starts[turn] :][:BATCH]])


def put_together(reads: Sequence[Read]) -> Batch:
    """Put examples side by side."""
    states, keep = pad([read.states for read in reads])
    markers, _ = pad([torch.tensor(read.markers) for read in reads], -1)
    own = torch.zeros(*markers.shape, states.shape[1])
    of_state = torch.zeros(keep.shape)
    for row, read in enumerate(reads):
        ends = (*read.markers[1:], read.closing)
        for option, (first, end) in enumerate(zip(read.markers, ends, strict=True)):
            own[row, option, first + 1 : end] = 1
        of_state[row, read.closing + 1 : len(read.states) - 1] = 1
    kinds = torch.tensor([read.kind for read in reads])
    answers = torch.tensor([read.answer for read in reads])
    return Batch(states.float(), keep, kinds, markers, answers, own, of_state)


def pad(rows: Sequence[Tensor], value: float = 0) -> tuple[Tensor, Tensor]:
    """Return rows side by side, (rows, longest, ..), and which are no padding, (rows, longest)."""
    lengths = torch.tensor([len(row) for row in rows])
    padded = pad_sequence(list(rows), batch_first=True, padding_value=value)
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]
