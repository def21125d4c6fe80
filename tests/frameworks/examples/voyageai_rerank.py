"""Rerank, voyageai 0.5.0: rerank.

Raises MalformedRequestError.
"""

import voyageai

client = voyageai.Client(api_key="none", base_url="http://127.0.0.1:8000/v1")
answer = client.rerank(query, texts, model="my-reranker", top_k=2)
ranked = [(result.document, result.relevance_score) for result in answer.results]
