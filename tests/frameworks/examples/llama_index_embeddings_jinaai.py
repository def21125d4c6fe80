"""Embeddings, llama-index-embeddings-jinaai 0.7.0.

Its constructor takes no address. It asks for one bit for each number.

Raises RuntimeError.
"""

from llama_index.embeddings.jinaai import JinaEmbedding

embeddings = JinaEmbedding(api_key="none", model="all-MiniLM-L6-v2", encoding_documents="ubinary")
embeddings._api.api_url = "http://127.0.0.1:8000/v1/embeddings"
bits = embeddings.get_text_embedding_batch(texts)
