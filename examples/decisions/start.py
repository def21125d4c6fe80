"""Where training starts: the first layer copies an option to its mask token, the second compares.

From random numbers a head of this size learns nothing in minutes: the encoder's states at the mask
tokens are nearly equal. So two small parts are trained alone first, and put into the layers:
`bind` (a mask token finds the tokens of its option) and `match` (an option finds words that are
like it in the state). Both see questions and right options, and no word that decides.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from batches import BATCH, Batch, Read, batches
from head import HEADS, WIDTH, Head, Layer
from torch import Tensor

BOUND = HEADS // 2  # heads that look at the option's own tokens; the others compare
HEAD = WIDTH // HEADS  # width of one
RATE, BIND_STEPS, MATCH_EPOCHS = 3e-3, 250, 3


def start(head: Head, reads: Sequence[Read]) -> None:
    """Set a head's two layers to copy and to compare."""
    first = head.layers[0]
    centre(first, reads)
    bind(head, reads)
    option, state = match(first, reads)
    place_copy(first, reads, option)
    place_comparison(head, reads, option, state)


@torch.no_grad()
def centre(first: Layer, reads: Sequence[Read]) -> None:
    """Take the mean of the states off, since it hides what tells them apart."""
    tokens = torch.cat([read.states.float() for read in reads[:600]])
    first.norm1.bias.copy_(-F.layer_norm(tokens, (WIDTH,)).mean(0))


def bind(head: Head, reads: Sequence[Read]) -> None:
    """Train the first layer's bound heads to look at the option's own tokens."""
    first = head.layers[0]
    trained = [first.query.left, first.query.right, first.query.bias]

    def loss(batch: Batch) -> Tensor:
        states = first.norm1(batch.states + head.types[batch.kinds][:, None]).detach()
        places = batch.markers.clamp(min=0)[..., None].expand(-1, -1, WIDTH)
        weights, _ = first.attend(states, batch.keep, states.gather(1, places))
        return binding_loss(weights, batch)

    steps = 0
    optimizer = torch.optim.AdamW([*trained, first.key.left, first.key.right], RATE)
    while steps < BIND_STEPS:
        steps += minimize(loss, optimizer, reads[: BATCH * (BIND_STEPS - steps)])


def binding_loss(weights: Tensor, batch: Batch) -> Tensor:
    """Return -log of the attention of (batch, heads, options, tokens) to the own tokens, mean."""
    own = (weights[:, :BOUND] * batch.own[:, None]).sum(-1)
    lost = -(own + 1e-6).log().mean(1)
    return lost[batch.markers >= 0].mean()


def match(first: Layer, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
    """Train two maps, (rank, width), under which the right option is like words of the state."""
    rank = len(first.value.right)
    option = torch.nn.Parameter(torch.randn(rank, WIDTH) * WIDTH**-0.5)
    state = torch.nn.Parameter(option.detach().clone())

    def loss(batch: Batch) -> Tensor:
        tokens = first.norm1(batch.states).detach()
        scores = (own_mean(tokens, batch) @ option.T) @ (tokens @ state.T).mT * HEAD**-0.5
        weights = scores.masked_fill(~batch.keep[:, None], -torch.inf).softmax(-1)
        return matching_loss(weights[:, None], batch)

    optimizer = torch.optim.AdamW([option, state], RATE / 3)
    for _ in range(MATCH_EPOCHS):
        minimize(loss, optimizer, reads)
    return option.detach(), state.detach()


def matching_loss(weights: Tensor, batch: Batch) -> Tensor:
    """Return the loss where an option's logit is the log odds of its attention to the state."""
    return F.cross_entropy(odds(weights, batch), batch.answers)


def odds(weights: Tensor, batch: Batch) -> Tensor:
    """Return log odds of the state in (batch, heads, options, tokens), the mean of the heads."""
    share = (weights * batch.of_state[:, None, None]).sum(-1)
    logits = ((share + 1e-6).log() - (1 - share + 1e-6).log()).mean(1)
    return logits.masked_fill(batch.markers < 0, -1e4)


def minimize(
    loss: Callable[[Batch], Tensor], optimizer: torch.optim.Optimizer, reads: Sequence[Read]
) -> int:
    """Take one step for each batch; return how many."""
    steps = 0
    for batch in batches(reads, shuffle=True):
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()
        steps += 1
    return steps


@torch.no_grad()
def place_copy(first: Layer, reads: Sequence[Read], option: Tensor) -> None:
    """Make the first layer's bound heads copy what `option` reads of an option.

    To directions in which the states hardly differ, so that it stands beside them.
    """
    rank = len(option)
    tokens = first.norm1(torch.cat([read.states.float() for read in reads[:600]]))
    quiet = torch.linalg.eigh(tokens.T @ tokens).eigenvectors[:, :rank]  # (width, rank)
    first.value.right.copy_(option)
    first.value.left.copy_(block(rank).repeat(HEADS, 1))
    first.out.right.zero_()
    first.out.right[:, : BOUND * HEAD] = block(rank).T.repeat(1, BOUND) / BOUND
    first.out.left.copy_(quiet)


@torch.no_grad()
def place_comparison(head: Head, reads: Sequence[Read], option: Tensor, state: Tensor) -> None:
    """Make the second layer's other heads compare that with the tokens of the state."""
    second, rank = head.layers[1], len(option)
    found = after_first(head, reads[:960], option, state)
    mean = found.tokens.mean(0)
    query = least_squares(with_one(found.markers - mean), found.queries)
    second.norm1.bias.copy_(-mean)
    second.query.right.copy_(query[:-1].T)
    second.query.bias[BOUND * HEAD :] = F.pad(query[-1], (0, HEAD - rank)).repeat(HEADS - BOUND)
    second.key.right.copy_(least_squares(found.tokens - mean, found.keys).T)
    second.value.right.copy_(second.key.right)
    second.value.right[-1] = least_squares(found.tokens - mean, found.of_state[:, None])[:, 0]
    for part in (second.query, second.key, second.value):
        part.left[BOUND * HEAD :] = block(rank).repeat(HEADS - BOUND, 1)


class After(NamedTuple):
    """Tokens and mask tokens after the first layer, normalized, and what is wanted of them.

    Args:
        tokens: (tokens, width).
        keys: (tokens, rank).
        of_state: 1 for those of a state, else -1, (tokens,).
        markers: (markers, width).
        queries: (markers, rank).
    """

    tokens: Tensor
    keys: Tensor
    of_state: Tensor
    markers: Tensor
    queries: Tensor


def after_first(head: Head, reads: Sequence[Read], option: Tensor, state: Tensor) -> After:
    """Run the first layer."""
    first = head.layers[0]
    parts = []
    for batch in batches(reads):
        rows, _ = first(batch.states + head.types[batch.kinds][:, None], batch.keep)
        rows, before = F.layer_norm(rows, (WIDTH,)), first.norm1(batch.states)
        places = batch.markers.clamp(min=0)[..., None].expand(-1, -1, WIDTH)
        parts.append(
            After(
                rows[batch.keep],
                (before @ state.T)[batch.keep],
                2 * batch.of_state[batch.keep] - 1,
                rows.gather(1, places)[batch.markers >= 0],
                (own_mean(before, batch) @ option.T)[batch.markers >= 0],
            )
        )
    return After(*(torch.cat(same) for same in zip(*parts, strict=True)))


def own_mean(tokens: Tensor, batch: Batch) -> Tensor:
    """Return the mean of each option's own tokens, (batch, options, width)."""
    return batch.own / batch.own.sum(-1, keepdim=True).clamp(min=1) @ tokens


def block(rank: int) -> Tensor:
    """Return ones that put so many numbers first in a head, (head's width, rank)."""
    return torch.eye(HEAD, rank)


def with_one(inputs: Tensor) -> Tensor:
    """Append a column of ones."""
    return F.pad(inputs, (0, 1), value=1.0)


def least_squares(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the map from (rows, inputs) to (rows, outputs) of least squares, slightly damped."""
    damped = inputs.T @ inputs + 10 * torch.eye(inputs.shape[1])
    return torch.linalg.solve(damped, inputs.T @ outputs)
