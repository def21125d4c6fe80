"""Rerank, litellm 1.106.2.

Raises APIError.
"""

import litellm

answer = litellm.rerank(
    model="huggingface/my-reranker",
    api_base="http://127.0.0.1:8000",
    query=query,
    documents=texts,
    top_n=2,
)
ranked = [(texts[result["index"]], result["relevance_score"]) for result in answer.results]
