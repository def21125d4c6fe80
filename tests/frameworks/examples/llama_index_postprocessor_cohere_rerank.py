"""Rerank, llama-index-postprocessor-cohere-rerank 0.10.0.

Raises UnprocessableEntityError.
"""

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

ranker = CohereRerank(
    base_url="http://127.0.0.1:8000", api_key="none", model="my-reranker", top_n=2
)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
ranked = [(node.text, node.score) for node in ranker.postprocess_nodes(nodes, query_str=query)]
