"""The bare server around OpenVINO, of the graph that ONNX Runtime has.

    python starlette_openvino.py MODEL PORT [--format float32|bfloat16|int8]

One pass at a time on all cores, as its makers advise for that (the latency hint); shapes are free.
float32 is asked for by name: by itself OpenVINO takes bfloat16 where the processor has it, also for
what int8 leaves.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import bare
import openvino
from feeds import Feeds

HINTS = {"float32": "f32", "bfloat16": "bf16"}


def read_graph(core, path):
    """Return the graph with the vectors of texts as its only output."""
    graph = core.read_model(path)
    for result in graph.get_results():
        if "sentence_embedding" not in result.input_value(0).get_names():
            graph.remove_result(result)
    return graph


def make_int8(folder):
    """Return where the model's graph of int8 is; a process of its own makes it, once."""
    path = Path(folder) / "openvino" / "int8.xml"
    if not path.exists():
        script = Path(__file__).with_name("static_int8.py")
        subprocess.run([sys.executable, script, folder, path], check=True)
    return path


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("port", type=int)
parser.add_argument("--format", choices=[*HINTS, "int8"], default="float32")
options = parser.parse_args()

core, settings = openvino.Core(), {"PERFORMANCE_HINT": "LATENCY"}
if options.format == "int8":
    path = make_int8(options.model)
else:
    path = f"{options.model}/onnx/model.onnx"
    settings["INFERENCE_PRECISION_HINT"] = HINTS[options.format]
if options.format == "bfloat16" and "BF16" not in core.get_property(
    "CPU", "OPTIMIZATION_CAPABILITIES"
):
    sys.exit("OpenVINO has no bfloat16 on this processor")
compiled, feeds = core.compile_model(read_graph(core, path), "CPU", settings), Feeds(options.model)
bare.serve(lambda texts: compiled(feeds(texts))[0], options.port)
