"""Runs the model without a service, and prints what it finds, a line of JSON each.

On an arm64 and on x86, whose vectors and maps test_arm64.py compares.
"""

import json
import platform
from typing import Any

import torch

from model import kernels
from model.loading import checkpoint
from model.maps import maps
from model.maps.tiles import MapReader
from model.native import agreement, library
from model.native.stack import NativeStack
from model.packing import Sequence, pack_sequences
from service.files.weights import BUNDLED_MODEL, locate_model
from tests.model.native.test_native import FAMILIES, made

CPU = torch.device("cpu")
NOTHING = frozenset[int]()
# one of each order of norms, of positions and of heads, and each activation
CELLS = (
    *("post-norm", "post-norm, rotary", "pre-norm, gated, rotary, windows", "gelu_tanh, gated"),
    *(
        "shared keys, causal, norms of heads, in panels",
        "shared keys, windows, norms on both sides",
    ),
    *("heads of 10", "silu, plain", "relu, gated, in panels"),
)
WELL = [101, 2035, 2003, 2092, 102]  # All is well
LENGTHS = (1, 2, 3, 7, 16, 17, 40, 65, 200)


def tell(name: str, found: Any) -> None:
    """Print one finding."""
    print(json.dumps({name: found}), flush=True)


def main() -> None:
    """Print kernels, what each family's pass gives next to its loop, then the bundled model's."""
    operator = library.load_operator()
    way = kernels.choose_kernels(CPU, torch.float32)
    tell("machine", [platform.machine(), torch.__version__, torch.get_num_threads()])
    tell("kernels", [way.name, torch.backends.cpu.get_cpu_capability()])
    for name in CELLS:
        encoder = made(FAMILIES[name])
        tell(f"family {name}", agreement.agrees_with_loop(encoder, NativeStack(encoder, operator)))
    folder = locate_model(BUNDLED_MODEL)[0]
    model = checkpoint.load_checkpoint(folder, CPU, torch.float32, way)
    native = NativeStack(model.encoder, operator)
    tell("bundled", agreement.agrees_with_loop(model.encoder, native))
    ids = [WELL, *([(7 * i + length) % 20000 + 1000 for i in range(length)] for length in LENGTHS)]
    sequences = [Sequence(each) for each in ids]
    packs = [pack_sequences([one], CPU, None, native.unpadded_rows) for one in sequences]
    alone = [native(pack, NOTHING, NOTHING).last[pack.rows(0)] for pack in packs]
    together = pack_sequences(sequences, CPU, None, native.unpadded_rows)
    every = frozenset(range(model.encoder.config.layers))
    encoded = native(together, NOTHING, every)
    same = [torch.equal(encoded.last[together.rows(i)], one) for i, one in enumerate(alone)]
    tell("bits alone and in a batch", same)
    vectors = torch.stack([rows.mean(0) / rows.mean(0).norm() for rows in alone])
    tell("vectors", vectors.tolist())
    heads = list(range(model.encoder.config.heads))
    kept = [maps.full_maps(MapReader(encoded.traces[i], together.rows(0), heads)) for i in every]
    tell("maps", torch.stack(kept).tolist())


main()
