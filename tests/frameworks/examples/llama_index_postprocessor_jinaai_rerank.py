"""Rerank, llama-index-postprocessor-jinaai-rerank 0.6.0.

Raises RuntimeError.
"""

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank

ranker = JinaRerank(
    base_url="http://127.0.0.1:8000/v1", api_key="none", model="my-reranker", top_n=2
)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
ranked = [(node.text, node.score) for node in ranker.postprocess_nodes(nodes, query_str=query)]
