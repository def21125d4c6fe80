"""Trains the head on made sentences, the bundled encoder frozen; minutes on two cores.

    python examples/decisions/train.py

Writes head.safetensors and head.json, and prints the share of right answers. Needs `laya`, which
builds the sequences and runs the encoder.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import laya
import torch
import torch.nn.functional as F
from batches import BATCH, Read, batches, pad
from head import KINDS, WEIGHTS, Head
from laya.common import QTYPES, build_sequence
from make import SETTINGS, write_folder
from safetensors.torch import save_file
from sentences import Drawer, Example
from start import BOUND, binding_loss, matching_loss, start

SEED = 65
EXAMPLES = {"train": 8000, "held": 1600}
RANK, DROPOUT = 32, 0.1
EPOCHS, RATE, DECAY = 5, 1e-3, 0.01
BINDING, MATCHING = 0.3, 1.0  # weights of the losses that keep what `start` has trained
TEMPERATURES = torch.linspace(0.5, 5, 451)  # of which the best is kept; laya reads no others


def main() -> None:
    """Train, measure and write the head."""
    torch.set_num_threads(1)  # the same sums on any number of cores
    begun = time.monotonic()
    encoder = load_encoder()
    reads = {
        part: read(encoder, Drawer(part, SEED).draw(count)) for part, count in EXAMPLES.items()
    }
    print(f"{time.monotonic() - begun:.0f} s: sequences read", flush=True)
    torch.manual_seed(SEED)
    head = Head(RANK, DROPOUT)
    for epoch, loss in enumerate(fit(head, reads["train"])):
        print(f"{time.monotonic() - begun:.0f} s: epoch {epoch}, loss {loss:.3f}", flush=True)
    thin = {name: tensor.half() for name, tensor in head.state_dict().items()}
    head.load_state_dict(thin)  # measured as it is stored
    temperatures = fit_temperatures(head, reads["held"][::2])
    save_file(thin, WEIGHTS)
    shares = {part: measure(head, reads[part][: EXAMPLES["held"]]) for part in reads}
    SETTINGS.write_text(json.dumps({"temperature": temperatures, "right": shares}, indent=2) + "\n")
    print(SETTINGS.read_text())


def load_encoder() -> laya.Agent:
    """Return laya's agent of the bundled encoder, under a head that is not trained."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), Head(rank=1).state_dict(), [1.0] * KINDS)
        return laya.load(folder, device="cpu")


@torch.no_grad()
def read(agent: laya.Agent, examples: Sequence[Example]) -> list[Read]:
    """Run the encoder over examples, one sequence each."""
    sequences = [sequence(agent, example) for example in examples]
    reads: dict[int, Read] = {}
    order = sorted(range(len(examples)), key=lambda place: len(sequences[place][0]))
    for first in range(0, len(order), BATCH):
        places = order[first : first + BATCH]
        ids, keep = pad([torch.tensor(sequences[place][0]) for place in places])
        states = agent.model.encoder(ids, keep.long()).last_hidden_state.half()
        for row, place in zip(states, places, strict=True):
            tokens, markers = sequences[place]
            kind = QTYPES[examples[place].question["type"]]
            closing = len(tokens) - 2 - tokens[-2::-1].index(agent.tok.sep_token_id)
            kept = row[: len(tokens)].clone()
            reads[place] = Read(kept, kind, markers, closing, examples[place].answer)
    return [reads[place] for place in range(len(examples))]


def sequence(agent: laya.Agent, example: Example) -> tuple[list[int], list[int]]:
    """Return an example's tokens and the places of its mask tokens, as laya builds them."""
    question = example.question
    asked = {"t": question["type"], "ins": question["instructions"]}
    return build_sequence(agent.tok, example.state, asked | {"crit": question.get("criteria")})


def fit(head: Head, reads: Sequence[Read]) -> Iterator[float]:
    """Train a head; yield the mean loss of each epoch."""
    start(head, reads)
    optimizer = torch.optim.AdamW(head.parameters(), lr=RATE, weight_decay=DECAY)
    steps = EPOCHS * -(-len(reads) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, pct_start=0.1)
    for _ in range(EPOCHS):
        losses = []
        head.train()
        for batch in batches(reads, shuffle=True):
            logits, (bound, compared) = head(*batch[:4])
            loss = F.cross_entropy(logits, batch.answers)
            losses.append(loss.item())
            loss = loss + BINDING * binding_loss(bound, batch)
            loss = loss + MATCHING * matching_loss(compared[:, BOUND:], batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        yield sum(losses) / len(losses)


@torch.no_grad()
def fit_temperatures(head: Head, reads: Sequence[Read]) -> list[float]:
    """Return for each kind the temperature under which the right options are likeliest."""
    head.eval()
    losses = torch.zeros(KINDS, len(TEMPERATURES))
    for batch in batches(reads):
        scaled = head(*batch[:4])[0] / TEMPERATURES[:, None, None]  # (temperatures, batch, options)
        loss = -scaled.log_softmax(2)[:, torch.arange(len(batch.answers)), batch.answers]
        losses.index_add_(0, batch.kinds, loss.T)
    return [round(TEMPERATURES[row.argmin()].item(), 2) for row in losses]


@torch.no_grad()
def measure(head: Head, reads: Sequence[Read]) -> dict[str, float]:
    """Return the share of right answers by kind of question."""
    head.eval()
    right = {kind: [] for kind in range(KINDS)}
    for batch in batches(reads):
        hits = head(*batch[:4])[0].argmax(1) == batch.answers
        for kind, hit in zip(batch.kinds.tolist(), hits.tolist(), strict=True):
            right[kind].append(hit)
    return {name: round(sum(right[kind]) / len(right[kind]), 3) for name, kind in QTYPES.items()}


if __name__ == "__main__":
    main()
