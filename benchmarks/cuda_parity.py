"""Holds the CUDA path against the CPU's float32 answer, and says how fast it is.

    python benchmarks/cuda_parity.py

Needs a CUDA device. For float32, bfloat16 and float16: the kernels chosen, the largest difference
of token vectors and of all attention maps from float32 on the CPU, how many answers move with the
batch, and tokens per second of a batch of 64 x 128 tokens.
"""

import time
from pathlib import Path

import torch

from model import checkpoint, kernels, maps
from model.checkpoint import Model
from model.packing import Sequence
from model.tiles import Look
from service.weights import BUNDLED, locate

TEXTS = Path(__file__).parent.parent / "tests" / "model" / "texts.txt"
ROUNDS = 20


def load(device: str, dtype: torch.dtype) -> tuple[Model, str]:
    """The bundled model and the name of its kernels."""
    where = torch.device(device)
    chosen = kernels.choose(where, dtype)
    return checkpoint.load(locate(BUNDLED)[0], where, dtype, chosen), chosen.name


def differences(exact: Model, fast: Model, sequences: list[Sequence]) -> tuple[float, float, int]:
    """Largest difference of vectors and of maps, and how many answers move with the batch."""
    layers, heads = range(exact.config.layers), range(exact.config.heads)
    whole = [m.encoder(m.encoder.pack(sequences), traces=set(layers)) for m in (exact, fast)]
    vectors = shown = 0.0
    moved = 0
    for index, sequence in enumerate(sequences):
        rows = [encoded.packed.rows(index) for encoded in whole]
        a, b = (encoded.last[r].float().cpu() for encoded, r in zip(whole, rows, strict=True))
        vectors = max(vectors, float((a - b).abs().max()))
        for layer in layers:
            a, b = (
                maps.full(Look(encoded.traces[layer], r, heads)).cpu()
                for encoded, r in zip(whole, rows, strict=True)
            )
            shown = max(shown, float((a - b).abs().max()))
        alone = fast.encoder(fast.encoder.pack([sequence]))
        moved += not torch.equal(alone.last[: len(sequence)], whole[1].last[rows[1]])
    return vectors, shown, moved


def speed(model: Model) -> float:
    """Tokens per second of 64 sequences of 128 tokens."""
    packed = model.encoder.pack([Sequence([7] * 128)] * 64)
    for _ in range(3):
        model.encoder(packed)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        model.encoder(packed)
    torch.cuda.synchronize()
    return ROUNDS * 64 * 128 / (time.perf_counter() - begun)


@torch.inference_mode()
def main() -> None:
    """All rows."""
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here")
    exact, _ = load("cpu", torch.float32)
    lines = [line for line in TEXTS.read_text("utf-8").splitlines() if line]
    ids = [tokenized.token_ids for tokenized in exact.tokenizer([(line,) for line in lines], 512)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {len(ids)} texts")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        fast, name = load("cuda", dtype)
        vectors, shown, moved = differences(exact, fast, [Sequence(one) for one in ids])
        print(
            f"{dtype} {name:8s} vectors {vectors:.1e}  maps {shown:.1e}  "
            f"moved with the batch {moved}/{len(ids)}  {speed(fast):,.0f} tokens/s"
        )


if __name__ == "__main__":
    main()
