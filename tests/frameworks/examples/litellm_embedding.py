"""Embeddings, litellm 1.106.2: embedding.

Its proxy: `model: openai/all-MiniLM-L6-v2` and `api_base` in its `model_list`.

Raises BadRequestError.
"""

import litellm

answer = litellm.embedding(
    model="openai/all-MiniLM-L6-v2",
    api_base="http://127.0.0.1:8000/v1",
    api_key="none",
    input=texts,
)
vectors = [item["embedding"] for item in answer.data]
