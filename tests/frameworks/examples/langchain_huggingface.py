"""Embeddings, langchain-huggingface 1.2.3.

Its constructor takes no address; its client does.

Raises HfHubHTTPError.
"""

from huggingface_hub import InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings

embeddings = HuggingFaceEndpointEmbeddings()
embeddings.client = InferenceClient("http://127.0.0.1:8000")
vectors = embeddings.embed_documents(texts)
