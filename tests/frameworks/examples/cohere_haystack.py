"""Rerank, cohere-haystack 11.0.0.

Raises UnprocessableEntityError.
"""

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker

ranker = CohereRanker(
    api_base_url="http://127.0.0.1:8000",
    api_key=Secret.from_token("none"),
    model="my-reranker",
    top_k=2,
)
documents = [Document(content=text) for text in texts]
ranked = [
    (document.content, document.score)
    for document in ranker.run(query=query, documents=documents)["documents"]
]
