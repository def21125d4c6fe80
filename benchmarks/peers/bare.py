"""The bare server: Starlette around an engine, one process, one forward pass at a time.

No queue, no limits, no metrics; the hardest baseline. A request's texts run by length, eight at a
time, which spares most of the padding.
"""

import orjson
import uvicorn
from feeds import encode_sorted
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PIECES = 8


def serve(encode, port):
    """Serve what encodes texts, (texts, width), as TEI's POST /embed; until it is killed."""

    async def embed(request: Request) -> Response:
        texts = orjson.loads(await request.body())["inputs"]
        vectors = encode_sorted(encode, texts, PIECES)
        body = orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    app = Starlette(routes=[Route("/embed", embed, methods=["POST"])])
    uvicorn.run(app, port=port, log_level="warning")
