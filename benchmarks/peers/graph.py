"""The model's ONNX graph in ONNX Runtime: texts in, vectors out.

    python graph.py MODEL [--sorted 8] [--int8]

By itself an engine that beside_onnx.py times: for each line of JSON, batches of texts, it answers
with the seconds that each took and the first one's vectors.
"""

import argparse
import json
import sys
import time

import numpy as np
import onnxruntime
from onnxruntime.quantization import quantize_dynamic
from tokenizers import Tokenizer


class Graph:
    """The model in a folder.

    Args:
        pieces: a batch's texts run in pieces of so many, by length, which spares most of the
            padding; 0: all at once.
        int8: whether its weights are quantized, and its rows as they come, by ONNX Runtime itself.
    """

    def __init__(self, folder, pieces=0, int8=False):
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")  # pads and cuts at 128
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(512)
        path = f"{folder}/onnx/model.onnx"
        if int8:
            path, whole = f"{folder}/onnx/int8.onnx", path
            quantize_dynamic(whole, path)
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.pieces = pieces

    def __call__(self, texts):
        """Return the vectors of texts, (texts, width)."""
        return self.in_pieces(texts) if self.pieces else self.encode(texts)

    def encode(self, texts):
        """Encode all at once."""
        cut = self.tokenizer.encode_batch(texts)
        feeds = {
            "input_ids": np.array([each.ids for each in cut]),
            "attention_mask": np.array([each.attention_mask for each in cut]),
            "token_type_ids": np.array([each.type_ids for each in cut]),
        }
        return self.session.run(["sentence_embedding"], feeds)[0]

    def in_pieces(self, texts):
        """Encode by length, this many at a time."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        vectors = np.empty((len(texts), 384), dtype=np.float32)
        for start in range(0, len(texts), self.pieces):
            places = order[start : start + self.pieces]
            vectors[places] = self.encode([texts[place] for place in places])
        return vectors


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
    parser.add_argument("--int8", action="store_true")
    options = parser.parse_args()
    serve(Graph(options.model, options.sorted, options.int8))
