"""Embeddings, llama-index-embeddings-openai-like 0.4.0.

Raises BadRequestError.
"""

from llama_index.embeddings.openai_like import OpenAILikeEmbedding

embeddings = OpenAILikeEmbedding(
    api_base="http://127.0.0.1:8000/v1", api_key="none", model_name="all-MiniLM-L6-v2"
)
vectors = embeddings.get_text_embedding_batch(texts)
