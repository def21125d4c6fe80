"""Embeddings, agno 3.1.10.

It asks a text at a time.

Raises EmbeddingError with the status alone.
"""

import numpy as np
from agno.knowledge.embedder.jina import JinaEmbedder

embedder = JinaEmbedder(
    base_url="http://127.0.0.1:8000/v1/embeddings",
    api_key="none",
    id="all-MiniLM-L6-v2",
    dimensions=384,
    embedding_type="ubinary",
)
packed = [embedder.get_embedding(text) for text in texts]
bits = np.unpackbits(np.array(packed, dtype=np.uint8), axis=1).tolist()
