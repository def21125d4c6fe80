"""Rerank, langchain-nvidia-ai-endpoints 1.5.0: NVIDIARerank.

Its scores are logits, as NIM's; their sigmoid is the checkpoint's own score.

Raises Exception.
"""

from math import exp

from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIARerank

ranker = NVIDIARerank(
    base_url="http://127.0.0.1:8000/v1", api_key="none", model="my-reranker", top_n=2
)
documents = [Document(page_content=text) for text in texts]
ranked = [
    (document.page_content, 1 / (1 + exp(-document.metadata["relevance_score"])))
    for document in ranker.compress_documents(documents, query)
]
