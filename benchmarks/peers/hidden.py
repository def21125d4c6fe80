"""An encoder's ONNX graph in ONNX Runtime, timed: token ids in, the last layer's vectors out.

    python hidden.py GRAPH

For each line of JSON, `ids` and `mask` of (texts, tokens) and how many `seconds` to go on, it
answers with the seconds of the fastest call and the vector of the first text's first token.
"""

import json
import sys
import time

import numpy as np
import onnxruntime


def main():
    """Answer each line."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
    print("loaded", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        given = {"input_ids": np.array(asked["ids"]), "attention_mask": np.array(asked["mask"])}
        vectors = session.run(None, given)[0]
        times, stop = [], time.perf_counter() + asked["seconds"]
        while not times or time.perf_counter() < stop:
            begun = time.perf_counter()
            session.run(None, given)
            times.append(time.perf_counter() - begun)
        print(json.dumps([min(times), vectors[0, 0].tolist()]), flush=True)


if __name__ == "__main__":
    main()
