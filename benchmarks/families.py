"""Every family's layers next to transformers and to ONNX Runtime, in one run.

    PYTHONPATH=. python benchmarks/families.py [--families bert qwen3] [--sizes small base]

Random weights, float32, one core, token ids in and the last layer's vectors out. Of each engine
and shape counts the fastest of the calls of some seconds, in turns: the machine should have
nothing else to do. transformers uses torch's sdpa, but for MPNet and DeBERTa, which lack it; ALiBi
is its BERT with slopes in the mask, as the tests have it.
Vectors must agree to 1e-3 of the largest. ONNX Runtime has the graph that torch's exporter makes of
transformers' eager form, "-" where it makes none; its environment is that of `make bench-http`,
made where it is missing.
"""

import argparse
import json
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import piped
import torch
import transformers
from served.servers import BUILT, PEERS, SERVERS, install
from torch import Tensor, nn
from transformers import PreTrainedModel

from model import families, kernels
from model.encoder import Encoder
from model.loading.assembly import build_encoder, expected_shapes
from model.loading.files import CONFIG, WEIGHTS
from model.loading.tensors import open_tensors, translate_names
from model.native import library
from model.native.stack import NativeStack
from model.packing import Packed, Sequence
from tests.model.loading import test_jina_bert as jina

CPU = torch.device("cpu")
VOCABULARY, MOST = 1000, 514
SIZES = {  # base is cut to a third of its layers, which all cost the same
    "small": {"width": 384, "layers": 6, "heads": 12, "inner": 1536},
    "base": {"width": 768, "layers": 4, "heads": 12, "inner": 3072},
}
SHAPES: dict[str, list[int]] = {  # tokens of each text
    "1 x 16": [16],
    "32 mixed": random.Random(0).choices(range(4, 65), k=32),
    "8 x 128": [128] * 8,
}
DEBERTA = {
    "relative_attention": True,
    "position_buckets": 256,
    "pos_att_type": "p2c|c2p",
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
}
# What families need beyond the sizes
MORE: dict[str, dict[str, Any]] = {
    "electra": {"embedding_size": 128},
    "albert": {"embedding_size": 128},
    "deberta-v2": DEBERTA,
    "modernbert": {"pad_token_id": 0},
    "eurobert": {"num_key_value_heads": 4, "pad_token_id": 0},
    "qwen3": {"num_key_value_heads": 4, "head_dim": 64},
    "gemma3_text": {
        "num_key_value_heads": 4,
        "head_dim": 64,
        "use_bidirectional_attention": True,
    },
}
ALIBI = "alibi"  # which transformers lacks
# What transformers calls each
PREFIXES = {one.name: one.tiny_model.class_prefix for one in families.FAMILIES if one.tiny_model}
FAMILIES = [*PREFIXES, ALIBI]
GRAPHS = "starlette_onnx"  # whose environment has ONNX Runtime
DISTILBERT = {"hidden_size": "dim", "intermediate_size": "hidden_dim"}
AGREEMENT = 1e-3  # of the largest number, between the engines


@dataclass(frozen=True)
class Batch:
    """The same texts for all: packed for us, padded for the others, (texts, tokens)."""

    ids: Tensor
    mask: Tensor
    lengths: list[int]

    @classmethod
    def of(cls, lengths: list[int]) -> "Batch":
        """Draw token ids of texts this long."""
        mask = torch.tensor([[int(at < each) for at in range(max(lengths))] for each in lengths])
        return cls(torch.randint(5, VOCABULARY, mask.shape) * mask, mask, lengths)

    def sequences(self) -> list[Sequence]:
        """Return the texts without padding."""
        rows = zip(self.ids, self.lengths, strict=True)
        return [Sequence(row[:length].tolist()) for row, length in rows]


# Encodes a batch for some seconds: those of the fastest call, and the first token's vector
Engine = Callable[[Batch], tuple[float, list[float]]]


class Graph(nn.Module):
    """What is exported: ids and mask in, the last layer's vectors out."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.eval()  # what exports it puts it back into the mode that it finds

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return (texts, tokens, width)."""
        last: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return last


def draw_model(family: str, size: str) -> PreTrainedModel:
    """Return transformers' model of random weights."""
    sizes = SIZES[size]
    own = {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes["width"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["inner"],
        "max_position_embeddings": MOST,
    }
    if family == "distilbert":
        own = {DISTILBERT.get(key, key): value for key, value in own.items()}
    torch.manual_seed(0)
    if family == ALIBI:
        model: PreTrainedModel = jina.theirs(**own)
        model.set_attn_implementation("sdpa")
        for each in model.parameters():
            if each.dim() == 2:
                nn.init.normal_(each, std=model.config.initializer_range)
        model.embeddings.position_embeddings.weight.zero_()
        return model
    name = PREFIXES[family]
    config = getattr(transformers, f"{name}Config")(**own | MORE.get(family, {}))
    model = getattr(transformers, f"{name}Model")(config).eval()
    model.config.use_cache = False
    return model


def load_ours(model: PreTrainedModel, folder: Path) -> Encoder:
    """Return the same model as we run it, by the compiled pass where it takes the family."""
    if isinstance(model, jina.JinaBert):
        jina.written(folder, model)
    else:
        model.save_pretrained(folder)
    config, family = families.read_config_and_family(json.loads((folder / CONFIG).read_text()))
    with open_tensors({WEIGHTS: folder / WEIGHTS}) as tensors:
        weights = translate_names(tensors, expected_shapes(config), family)
        way = kernels.choose_kernels(CPU, torch.float32, config.head_dim)
        encoder = build_encoder(config, weights, CPU, torch.float32, way)
    try:
        encoder.native = NativeStack(encoder, library.load_operator())
    except (library.OperatorMissing, NotImplementedError):
        encoder.native = None
    return encoder


def export_graph(model: PreTrainedModel, folder: Path) -> Path | None:
    """Write the model's graph; None where torch's exporter makes none."""
    graph = folder / "graph.onnx"
    example = torch.ones(2, 7, dtype=torch.int64)
    free = {0: "texts", 1: "tokens"}
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Graph(model),
                (example, example),
                str(graph),
                input_names=["input_ids", "attention_mask"],
                output_names=["last"],
                dynamic_axes=dict.fromkeys(("input_ids", "attention_mask", "last"), free),
                dynamo=False,
            )
    except Exception as error:  # of many kinds, by what it cannot trace
        print(f"no graph of {type(model).__name__}: {str(error).splitlines()[:1]}", flush=True)
        return None
    finally:
        model.set_attn_implementation(attention)
    return graph


def time_fastest(call: Callable[[], Tensor], seconds: float) -> tuple[float, list[float]]:
    """Return the seconds of the fastest call, and the first token's vector."""
    first: list[float] = call().reshape(-1, call().shape[-1])[0].tolist()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while not times or time.perf_counter() < stop:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times), first


def time_graph(
    process: piped.PipedEncoder, batch: Batch, seconds: float
) -> tuple[float, list[float]]:
    """Do the same in ONNX Runtime."""
    asked = {"ids": batch.ids.tolist(), "mask": batch.mask.tolist(), "seconds": seconds}
    assert process.process.stdin and process.process.stdout
    print(json.dumps(asked), file=process.process.stdin, flush=True)
    if not (line := process.process.stdout.readline()):
        raise SystemExit("ONNX Runtime ended")
    spent, first = json.loads(line)
    return spent, first


def print_family(family: str, size: str, seconds: float, rounds: int) -> None:
    """Print the family's rows of the table."""
    model = draw_model(family, size)
    with tempfile.TemporaryDirectory() as made, ExitStack() as running:
        encoder, graph = load_ours(model, Path(made)), export_graph(model, Path(made))
        engines: dict[str, Engine] = {
            "ours": lambda batch: time_fastest(
                partial(encode_first, encoder, encoder.pack(batch.sequences())), seconds
            ),
            "transformers": lambda batch: time_fastest(
                partial(Graph(model), batch.ids, batch.mask), seconds
            ),
        }
        if graph:
            command = [str(BUILT / GRAPHS / "bin" / "python"), str(PEERS / "hidden.py"), str(graph)]
            process = running.enter_context(piped.start_encoder(command))
            engines["ONNX Runtime"] = partial(time_graph, process, seconds=seconds)
        way = "compiled" if encoder.native else "loop"
        for shape, lengths in SHAPES.items():
            best = time_in_turns(engines, Batch.of(lengths), rounds)
            mine = best["ours"]
            cells = [f"{1e3 * mine:.1f}"]
            for peer in ("transformers", "ONNX Runtime"):
                its = best.get(peer)
                cells += [f"{1e3 * its:.1f}", f"{its / mine:.2f}"] if its else ["-", "-"]
            print(f"| {family} | {size} | {way} | {shape} | {' | '.join(cells)} |", flush=True)


def encode_first(encoder: Encoder, packed: Packed) -> Tensor:
    """Encode all texts, and return the first one's vectors, (tokens, width)."""
    return encoder(packed).last[packed.rows(0)]  # texts lie in an order of the packing's own


def time_in_turns(engines: dict[str, Engine], batch: Batch, rounds: int) -> dict[str, float]:
    """Return each engine's seconds; they take turns, and give the same vectors."""
    best = dict.fromkeys(engines, float("inf"))
    vectors: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, engine in engines.items():
            spent, vectors[name] = engine(batch)
            best[name] = min(best[name], spent)
    for name, vector in vectors.items():
        pairs = zip(vectors["ours"], vector, strict=True)
        off = max(abs(a - b) for a, b in pairs) / max(map(abs, vector))
        if off > AGREEMENT:
            raise SystemExit(f"the vectors of {name} differ by {off}")
    return best


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=0.4, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each engine and shape")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    install(SERVERS["onnx"], "")
    columns = ["family", "size", "way", "texts x tokens", "ours, ms"]
    columns += ["transformers, ms", "to it", "ONNX Runtime, ms", "to it"]
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|")
    for family in options.families:
        for size in options.sizes:
            print_family(family, size, options.seconds, options.rounds)


if __name__ == "__main__":
    main()
