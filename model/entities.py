"""GLiNER's head: which spans of a text are entities of labels that came with it.

    words    the vector of each word's first token, through a bidirectional LSTM
    span     W_out relu([W_start h_i; W_end h_j]) of each word i and j = i .. i + width - 1
    label    W_label of the vector of its mark
    score    sigmoid of the product of a span and a label

Each W is two linears with a relu between them. Of the spans with a score above a threshold the best
is taken first, and none that shares a word with one taken before.

Source: Zaratiana et al. 2024, "GLiNER: Generalist Model for Named Entity Recognition using
Bidirectional Transformer"; gliner 0.2.29, modeling/base.py (`UniEncoderSpanModel`), span_rep.py
(`SpanMarkerV0`), decoding/decoder.py (`greedy_search`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import Task
from model.kernels import Linear, uncut
from model.pooling import Dense
from model.text.splice import Spliced, Splicer

SPANS = 512  # whose vectors are in memory at once
NUMBER = 4  # bytes of an index or a float32

Pair = tuple[Dense, Dense]  # two linears, a relu between them


@dataclass(frozen=True, slots=True, eq=False)
class Entities:
    """Entities of a text by labels of the request's own. All is float32, sequence by sequence.

    Args:
        splicer: reads a text behind its labels.
        width: words of a span, at most.
        narrow: makes the head's vectors of the encoder's, where they differ in size.
        lstm: of words, where the checkpoint has it.
        start, end: of a span's first and last word, and out: of both, end to end.
        label: of marks.
        size: numbers of the head's vectors.
        threshold: scores above it count.
        several: whether a span may have several labels.
        names: of the labels at hand.
        spliced: the sequence at hand; None: none is.
    """

    splicer: Splicer
    width: int
    narrow: Linear | None
    lstm: nn.LSTM | None
    start: Pair
    end: Pair
    out: Pair
    label: Pair
    size: int
    threshold: float = 0.5
    several: bool = False
    names: tuple[str, ...] = ()
    spliced: Spliced | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return its tasks."""
        return ("entities",)

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Find entities in (tokens, width).

        Returns:
            In the order of their first words: the first and last word of each, its label and its
            score, (entities,) each.
        """
        scores = self.scores(tokens)
        if not self.several:  # the label that fits a span best, of equal ones the first
            best = scores.argmax(2, keepdim=True)
            scores = torch.full_like(scores, -1).scatter(2, best, scores.gather(2, best))
        found = (scores > self.threshold).nonzero().cpu()
        values = scores[tuple(found.to(scores.device).T)].cpu()
        order = values.sort(descending=True, stable=True).indices
        taken = _apart(found[order].tolist(), len(scores))
        kept = order[torch.tensor(taken, dtype=torch.long)]
        kept = kept[found[kept, 0].sort(stable=True).indices]
        first, more, label = found[kept].int().unbind(1)
        return {"first": first, "last": first + more, "label": label, "score": values[kept]}

    def scores(self, tokens: Tensor) -> Tensor:
        """Return how each label fits each span, (words, width, labels), -1 beyond the last word."""
        if self.spliced is None:
            raise RuntimeError("no sequence at hand: this is a bug")
        words = self.words(tokens[self.spliced.words])
        labels = _through(self.label, self._narrowed(tokens[self.spliced.labels])).T
        count = len(words)
        scores = words.new_full((count * self.width, labels.shape[1]), -1)
        starts, ends = _through(self.start, words).relu(), _through(self.end, words).relu()
        first = torch.arange(count).repeat_interleave(self.width)
        last = first + torch.arange(self.width).repeat(count)
        for places in torch.split((last < count).nonzero()[:, 0], SPANS):
            both = torch.cat([starts[first[places]], ends[last[places]]], 1)
            made = _through(self.out, both)
            with uncut():
                scores[places] = (made @ labels).sigmoid()
        return scores.view(count, self.width, len(self.spliced.labels))

    def words(self, rows: Tensor) -> Tensor:
        """Return the head's vectors of words, (words, size), of their first tokens'."""
        rows = self._narrowed(rows)
        if self.lstm is None or not len(rows):
            return rows
        made: Tensor = self.lstm(rows[None])[0][0]
        return made

    def bytes(self, tokens: int) -> int:
        """Count what the answer holds at most: an entity for each word, and each label of it."""
        if self.spliced is None:
            return 0
        count = len(self.spliced.words)
        names = [len(name.encode()) for name in self.names]
        each = sum(names) + 4 * NUMBER * len(names) if self.several else max(names) + 4 * NUMBER
        texts = len(self.spliced.text) * (len(names) if self.several else 1)
        return count * each + texts

    def flops(self, tokens: int) -> int:
        """Count the floating-point operations for the sequence at hand."""
        if self.spliced is None:
            return 0
        words, labels = len(self.spliced.words), len(self.spliced.labels)
        spans = words * self.width
        ways = ((self.start, words), (self.end, words), (self.label, labels), (self.out, spans))
        weights = sum(rows * (one.weights + two.weights) for (one, two), rows in ways)
        if self.lstm is not None:
            weights += words * sum(one.numel() for one in self.lstm.parameters())
        if self.narrow is not None:
            weights += (words + labels) * self.narrow.weight().numel()
        return 2 * (weights + spans * labels * self.size)

    def _narrowed(self, rows: Tensor) -> Tensor:
        rows = rows.float()
        return rows if self.narrow is None else self.narrow(rows)


def _through(pair: Pair, rows: Tensor) -> Tensor:
    """Apply two layers."""
    first, second = pair
    return second(first(rows))


def _apart(spans: list[list[int]], words: int) -> list[int]:
    """Return the places of spans that share no word with another span taken before.

    Args:
        spans: the first word of each, how many follow it, and its label; the best first.
        words: of the text.
    """
    owners: list[tuple[int, int] | None] = [None] * words
    taken = []
    for place, (first, more, _) in enumerate(spans):
        own, there = (first, more), owners[first : first + more + 1]
        if any(owner is not None for owner in there) and there != [own] * (more + 1):
            continue
        owners[first : first + more + 1] = [own] * (more + 1)
        taken.append(place)
    return taken
