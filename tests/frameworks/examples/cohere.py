"""Rerank, cohere 7.3.1.

Raises UnprocessableEntityError.
"""

import cohere

client = cohere.ClientV2(base_url="http://127.0.0.1:8000", api_key="none")
answer = client.rerank(model="my-reranker", query=query, documents=texts, top_n=2)
ranked = [(texts[result.index], result.relevance_score) for result in answer.results]
