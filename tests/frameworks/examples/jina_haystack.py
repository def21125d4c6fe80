"""Rerank, jina-haystack 2.0.1.

Raises RuntimeError.
"""

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.jina import JinaRanker

ranker = JinaRanker(
    base_url="http://127.0.0.1:8000/v1/rerank",
    api_key=Secret.from_token("none"),
    model="my-reranker",
    top_k=2,
)
documents = [Document(content=text) for text in texts]
ranked = [
    (document.content, document.score)
    for document in ranker.run(query=query, documents=documents)["documents"]
]
