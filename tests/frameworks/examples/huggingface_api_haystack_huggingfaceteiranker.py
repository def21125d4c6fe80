"""Rerank, huggingface-api-haystack 3.1.0: HuggingFaceTEIRanker.

Raises RuntimeError.
"""

from haystack import Document
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

ranker = HuggingFaceTEIRanker(url="http://127.0.0.1:8000", top_k=2)
documents = [Document(content=text) for text in texts]
ranked = [
    (document.content, document.score)
    for document in ranker.run(query=query, documents=documents)["documents"]
]
