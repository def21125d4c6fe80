"""Embeddings, langchain-nvidia-ai-endpoints 1.5.0: NVIDIAEmbeddings.

Too long texts are refused unless `truncate="END"` or `"START"`; `input_type` is for a
checkpoint with prompts.

Raises Exception.
"""

from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings

embeddings = NVIDIAEmbeddings(
    base_url="http://127.0.0.1:8000/v1", api_key="none", model="all-MiniLM-L6-v2"
)
vectors = embeddings.embed_documents(texts)
