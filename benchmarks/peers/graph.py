"""The model's ONNX graph in ONNX Runtime: texts in, vectors out.

    python graph.py MODEL [--sorted 8]

By itself an engine that beside_onnx.py times: for each line of JSON, batches of texts, it answers
with the seconds that each took and the first one's vectors.
"""

import argparse
import json
import sys
import time

import onnxruntime
from feeds import Feeds, encode_sorted
from onnxruntime.quantization import quantize_dynamic


class Graph:
    """The model in a folder.

    Args:
        int8: whether its weights are quantized, and its rows as they come, by ONNX Runtime itself.
    """

    def __init__(self, folder, int8=False):
        self.feeds = Feeds(folder)
        path = f"{folder}/onnx/model.onnx"
        if int8:
            path, whole = f"{folder}/onnx/int8.onnx", path
            quantize_dynamic(whole, path)
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def encode(self, texts):
        """Return the vectors of texts, (texts, width), all of one pass."""
        return self.session.run(["sentence_embedding"], self.feeds(texts))[0]


def serve(encode):
    """Answer each line of batches."""
    print("loaded", flush=True)
    for line in sys.stdin:
        seconds, vectors = [], []
        for texts in json.loads(line):
            begun = time.perf_counter()
            vectors.append(encode(texts))
            seconds.append(time.perf_counter() - begun)
        print(json.dumps([seconds, vectors[0].tolist()]), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--sorted", type=int, default=0)
    options = parser.parse_args()
    graph, pieces = Graph(options.model), options.sorted
    serve(lambda texts: encode_sorted(graph.encode, texts, pieces or len(texts)))
