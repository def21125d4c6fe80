"""FastAPI around sentence-transformers, as people write it at home.

python fastapi_st.py MODEL PORT
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(sys.argv[1], device="cpu")
model.max_seq_length = 512  # it would cut at 256


class Embed(BaseModel):
    """A request."""

    inputs: list[str]


@app.post("/embed")
def embed(request: Embed) -> list[list[float]]:
    """Return TEI's POST /embed; FastAPI runs it in its pool of threads."""
    return model.encode(request.inputs, normalize_embeddings=True).tolist()


uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
