"""The bare server: Starlette around ONNX Runtime, one process, one forward pass at a time.

    python starlette_onnx.py MODEL PORT [--sorted 8]

No queue, no limits, no metrics; the hardest float32 baseline. With --sorted a request's texts run
in pieces of so many, by length, which spares most of the padding.
"""

import argparse

import numpy as np
import onnxruntime
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tokenizers import Tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("port", type=int)
parser.add_argument("--sorted", type=int, default=0)
options = parser.parse_args()

tokenizer = Tokenizer.from_file(f"{options.model}/tokenizer.json")  # it pads and cuts at 128
tokenizer.enable_padding()
tokenizer.enable_truncation(512)
session = onnxruntime.InferenceSession(
    f"{options.model}/onnx/model.onnx", providers=["CPUExecutionProvider"]
)


def encode(texts):
    """Texts -> their vectors, (texts, width)."""
    cut = tokenizer.encode_batch(texts)
    feeds = {
        "input_ids": np.array([each.ids for each in cut]),
        "attention_mask": np.array([each.attention_mask for each in cut]),
        "token_type_ids": np.array([each.type_ids for each in cut]),
    }
    return session.run(["sentence_embedding"], feeds)[0]


def in_pieces(texts, size):
    """The same, by length and so many at a time."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    vectors = np.empty((len(texts), 384), dtype=np.float32)
    for start in range(0, len(texts), size):
        places = order[start : start + size]
        vectors[places] = encode([texts[place] for place in places])
    return vectors


async def embed(request: Request) -> Response:
    """TEI's POST /embed."""
    texts = orjson.loads(await request.body())["inputs"]
    vectors = in_pieces(texts, options.sorted) if options.sorted else encode(texts)
    body = orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")


app = Starlette(routes=[Route("/embed", embed, methods=["POST"])])
uvicorn.run(app, port=options.port, log_level="warning")
