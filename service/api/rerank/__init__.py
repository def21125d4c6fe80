"""POST /v1/rerank and /v2/rerank, as clients of Jina's and Cohere's rerankers know it."""
