"""infinity-emb on ONNX Runtime (its optimum engine), the faster of its engines for short texts.

python infinity.py MODEL PORT
"""

import sys
from pathlib import Path

from infinity_emb.cli import cli
from infinity_emb.transformer.embedder import optimum

# it would give optimum the file's path, where optimum-onnx now takes the name alone
optimum.get_onnx_files = lambda **_: Path("model.onnx")

sys.argv = [
    *("infinity_emb", "v2", "--model-id", sys.argv[1], "--served-model-name", "model"),
    *("--host", "127.0.0.1", "--port", sys.argv[2], "--engine", "optimum", "--device", "cpu"),
    *("--pooling-method", "mean"),  # without it this engine takes the first token's vector
]
cli()
