"""The bare server around ONNX Runtime.

    python starlette_onnx.py MODEL PORT [--int8]

With --int8 the weights are quantized, and rows as they come, by ONNX Runtime itself.
"""

import argparse

import bare
from graph import Graph

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("port", type=int)
parser.add_argument("--int8", action="store_true")
options = parser.parse_args()

bare.serve(Graph(options.model, int8=options.int8).encode, options.port)
