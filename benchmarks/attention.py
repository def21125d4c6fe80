"""What attention costs: the same sequences encoded alone, with statistics, with maps.

    python benchmarks/attention.py

One process per length, in which every kind takes its turn, round after round. Ours go through the
Lanes that serve and are laid out as safetensors, without HTTP. transformers runs eager with
output_attentions, which is how its users get maps, and makes the same statistics with torch.
Memory is the most that a process of its own came to hold while it worked, beyond what it held
with the model loaded and warm for sequences of one token.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

CORES = len(os.sched_getaffinity(0))
BATCHES = {  # tokens of each sequence
    "8 x 128": [128] * 8,
    "8 of 16 to 128": list(range(16, 129, 16)),
    "8 x 512": [512] * 8,
    "2 x 2048": [2048] * 2,
}
ROUNDS, FEWER_ROUNDS = 21, 5  # the fewer where a round takes long
MIB = 1 << 20

Ids = list[list[int]]
Request = Callable[[Ids], object]


def make_our_requests(folder: Path) -> dict[str, Request]:
    """Return requests to Lanes."""
    import torch

    from model.maps.forms import Selection
    from model.maps.units import divide_into_units
    from model.packing import Sequence
    from model.probes import Maps
    from service.engine.lanes import Lanes
    from service.files.loading import load_model, use_compiled_pass
    from service.files.weights import ModelSource
    from service.pipeline.write import answer
    from service.questions.encode import maps
    from service.shapes.answer import Answer, AnswerItem
    from service.shapes.work import Outputs, Work

    place, cpu = ModelSource(folder, folder.name), torch.device("cpu")
    # In this thread, which runs transformers too: libgomp throttles a second one with a team.
    torch.set_flush_denormal(True)
    torch.set_num_threads(CORES)
    lanes = Lanes(load_model(place, cpu, torch.float32), [ThreadPoolExecutor(1)] * CORES)
    use_compiled_pass(lanes.model)
    config = lanes.model.config
    every = {layer: tuple(range(config.heads)) for layer in range(config.layers)}

    def request(batch: Ids, form: str | None, heads: dict[int, tuple[int, ...]]) -> object:
        works = [Work(Sequence(ids), wanted(len(ids), form, heads)) for ids in batch]
        done: Any = lanes.run_batch(works, CORES)
        items = []
        for work, one in zip(works, done, strict=True):
            shown = work.outputs.probe(Maps)
            arrays = dict(maps.named_tensors(shown.selection, one.made[Maps.name])) if shown else {}
            items.append(AnswerItem(len(work), {}, one.pooled, arrays=arrays))
        return b"".join(answer.write_safetensors(Answer({}, items, {})))

    def wanted(tokens: int, form: Any, heads: dict[int, tuple[int, ...]]) -> Outputs:
        selection = Selection(
            heads, divide_into_units(tokens), form=form, cls=0, separators=(tokens - 1,)
        )
        return Outputs(pooling=lanes.model.pooling, probes=(Maps(selection),) if form else ())

    return {
        "plain": lambda batch: request(batch, None, {}),
        "stats of all heads": lambda batch: request(batch, "stats", every),
        "one full head": lambda batch: request(batch, "full", {5: (11,)}),
        "all 72 full heads": lambda batch: request(batch, "full", every),
        "dominance of all heads": lambda batch: request(batch, "dominance", every),
        "rollout": lambda batch: request(batch, "rollout", every),
    }


def make_their_requests(folder: Path) -> dict[str, Request]:
    """Return the same from transformers' eager maps; it pads a batch to its longest sequence."""
    import torch
    from transformers import BertModel

    torch.set_num_threads(CORES)
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()

    @torch.inference_mode()
    def request(batch: Ids, statistics: bool) -> object:
        lengths = [len(ids) for ids in batch]
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        padded = torch.tensor([ids + [0] * (max(lengths) - len(ids)) for ids in batch])
        out = model(padded, attention_mask=mask.long(), output_attentions=True)
        pooled = (out.last_hidden_state * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        if not statistics:
            return pooled
        if min(lengths) == max(lengths):
            return pooled, [describe(maps) for maps in out.attentions]
        return pooled, [
            describe(maps[i : i + 1, :, :length, :length])
            for maps in out.attentions
            for i, length in enumerate(lengths)
        ]

    def describe(maps: torch.Tensor) -> torch.Tensor:
        tokens = maps.shape[-1]
        far = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs().float()
        received = maps.mean(2)
        return torch.stack(
            [
                *(maps.diagonal(offset, 2, 3).mean(2) for offset in (0, -1, 1)),
                received[:, :, 0],
                received[:, :, -1],
                torch.special.entr(maps).sum(3).mean(2),
                maps[:, :, :, :-1].amax(3).mean(2),
                (maps * far).sum(3).mean(2),
                received.amax(2),
            ]
        )

    return {
        "transformers eager, maps": lambda batch: request(batch, False),
        "transformers eager, maps + statistics": lambda batch: request(batch, True),
    }


def draw_sequences(lengths: list[int]) -> Ids:
    """Return a batch of token ids."""
    return [
        [101, *((1000 + 7 * i + 13 * j) % 28000 for j in range(tokens - 2)), 102]
        for i, tokens in enumerate(lengths)
    ]


def time_requests(folder: Path, name: str) -> dict[str, tuple[float, float]]:
    """Return seconds of every kind of request and its ratio to plain, the median of some rounds.

    A round calls each kind once, so that what slows the machine for a while slows them all.
    """
    kinds = {**make_our_requests(folder), **make_their_requests(folder)}
    batch = draw_sequences(BATCHES[name])
    rounds = [{kind: time_once(request, batch) for kind, request in kinds.items()}]
    while len(rounds) <= (ROUNDS if sum(map(len, batch)) <= 1024 else FEWER_ROUNDS):
        rounds.append({kind: time_once(request, batch) for kind, request in kinds.items()})
    warm = rounds[1:]
    return {
        kind: (
            statistics.median(each[kind] for each in warm),
            statistics.median(each[kind] / each["plain"] for each in warm),
        )
        for kind in kinds
    }


def time_once(request: Request, batch: Ids) -> float:
    """Return seconds of one call."""
    start = time.perf_counter()
    request(batch)
    return time.perf_counter() - start


def peak_memory(folder: Path, name: str, kind: str) -> int:
    """Return bytes that one kind of request adds to the process at most."""
    make = make_their_requests if kind.startswith("transformers") else make_our_requests
    request = make(folder)[kind]
    request(draw_sequences([2]))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = read_memory("VmRSS")
    request(draw_sequences(BATCHES[name]))
    return read_memory("VmHWM") - before


def read_memory(name: str) -> int:
    """Return one of this process's figures in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def save_long_model(folder: Path, bundled: Path) -> Path:
    """Return a random model of the bundled one's sizes with positions enough."""
    code = (
        "import sys; from transformers import BertConfig, BertModel\n"
        f"config = BertConfig.from_pretrained({str(bundled)!r})\n"
        f"config.max_position_embeddings = {max(map(max, BATCHES.values()))}\n"
        "BertModel(config).save_pretrained(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    shutil.copy(bundled / "tokenizer.json", folder)
    return folder


def print_batch(folder: Path, name: str) -> None:
    """Print the rows of one batch."""

    from service.cluster.ingress import HEAP_ENV  # as a replica has it

    def ask(*more: str) -> Any:
        command = [sys.executable, __file__, "--folder", str(folder), "--batch", name]
        done = subprocess.run(
            [*command, *more],
            env=os.environ | HEAP_ENV,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return json.loads(done.stdout.splitlines()[-1])

    for kind, (seconds, ratio) in ask().items():
        held = ask("--kind", kind) / MIB
        print(
            f"| {name} | {kind} | {seconds * 1000:.1f} | {ratio:.2f} | {held:.0f} |",
            flush=True,
        )


def main() -> None:
    """Measure and print, or be the measured process."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", help=f"one of {', '.join(BATCHES)}; all by default")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(peak_memory(arguments.folder, arguments.batch, arguments.kind)))
    elif arguments.folder:
        print(json.dumps(time_requests(arguments.folder, arguments.batch)))
    else:
        print_table([arguments.batch] if arguments.batch else list(BATCHES))


def print_table(names: list[str]) -> None:
    """Print the rows of some batches."""
    from service.files.weights import BUNDLED_MODEL, locate_model

    bundled = locate_model(BUNDLED_MODEL).folder
    print("| sequences | request | ms | of plain | peak, MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="headlight-") as folder:
        for name in names:
            fits = max(BATCHES[name]) <= 512
            print_batch(bundled if fits else save_long_model(Path(folder), bundled), name)


if __name__ == "__main__":
    main()
