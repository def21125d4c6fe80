"""Embeddings, llama-index-embeddings-text-embeddings-inference 0.6.0.

Raises ValidationError that it expected a list.
"""

from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

embeddings = TextEmbeddingsInference(
    base_url="http://127.0.0.1:8000", model_name="all-MiniLM-L6-v2"
)
vectors = embeddings.get_text_embedding_batch(texts)
