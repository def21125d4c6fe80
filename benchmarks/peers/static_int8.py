"""Makes the model's graph one of static int8, by NNCF.

    python static_int8.py MODEL TARGET

Its scales are found with a set of this repository's sentences: some alone, some in paragraphs, some
as pages; with short texts alone they suit no long ones.
"""

import json
import sys
from pathlib import Path

import nncf
import openvino
from feeds import Feeds

SENTENCES = Path(__file__).parents[2] / "service" / "heads" / "relations.jsonl"
ALONE = 2  # each second sentence
PARAGRAPH, PAGE = 8, 50  # sentences


def calibration_texts():
    """Return sentences, paragraphs and pages."""
    lines = SENTENCES.read_text("utf-8").splitlines()
    every = list(dict.fromkeys(json.loads(line)["text"] for line in lines))
    joined = [
        " ".join(every[start : start + size])
        for size in (PARAGRAPH, PAGE)
        for start in range(0, len(every), size)
    ]
    return every[::ALONE] + joined


model, target = sys.argv[1:]
feeds = Feeds(model)
given = [feeds([text]) for text in calibration_texts()]
graph = nncf.quantize(
    openvino.Core().read_model(f"{model}/onnx/model.onnx"),
    nncf.Dataset(given),
    model_type=nncf.ModelType.TRANSFORMER,
    subset_size=len(given),
)
openvino.save_model(graph, target)
