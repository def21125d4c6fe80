"""Embeddings, cohere 7.3.1: embed.

`embeddings.int8` and `embeddings.ubinary` are smaller.

Raises UnprocessableEntityError.
"""

import cohere

client = cohere.ClientV2(base_url="http://127.0.0.1:8000", api_key="none")
answer = client.embed(
    model="all-MiniLM-L6-v2",
    input_type="search_document",
    texts=texts,
    embedding_types=["float", "int8", "ubinary"],
)
vectors = answer.embeddings.float_
