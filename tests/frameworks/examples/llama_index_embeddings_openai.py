"""Embeddings, llama-index-embeddings-openai 0.6.0.

`model_name`, and not `model`, which knows OpenAI's own models alone.

Raises BadRequestError.
"""

from llama_index.embeddings.openai import OpenAIEmbedding

embeddings = OpenAIEmbedding(
    api_base="http://127.0.0.1:8000/v1", api_key="none", model_name="all-MiniLM-L6-v2"
)
vectors = embeddings.get_text_embedding_batch(texts)
