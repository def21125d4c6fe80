"""The bare server: Starlette around ONNX Runtime, one process, one forward pass at a time.

    python starlette_onnx.py MODEL PORT [--sorted 8] [--int8]

No queue, no limits, no metrics; the hardest float32 baseline. With --sorted a request's texts run
in pieces of so many, by length, which spares most of the padding; with --int8 in fewer bits.
"""

import argparse

import orjson
import uvicorn
from graph import Graph
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("port", type=int)
parser.add_argument("--sorted", type=int, default=0)
parser.add_argument("--int8", action="store_true")
options = parser.parse_args()

graph = Graph(options.model, options.sorted, options.int8)


async def embed(request: Request) -> Response:
    """Return TEI's POST /embed."""
    texts = orjson.loads(await request.body())["inputs"]
    body = orjson.dumps(graph(texts), option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")


app = Starlette(routes=[Route("/embed", embed, methods=["POST"])])
uvicorn.run(app, port=options.port, log_level="warning")
