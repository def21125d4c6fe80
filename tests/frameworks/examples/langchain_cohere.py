"""Rerank, langchain-cohere 0.6.0.

pip installs an older cohere with it; with cohere's 5.21.1 it sends the same.

Raises UnprocessableEntityError.
"""

from langchain_cohere import CohereRerank
from langchain_core.documents import Document

ranker = CohereRerank(
    base_url="http://127.0.0.1:8000", cohere_api_key="none", model="my-reranker", top_n=2
)
documents = [Document(page_content=text) for text in texts]
ranked = [
    (document.page_content, document.metadata["relevance_score"])
    for document in ranker.compress_documents(documents, query)
]
