"""Rerank, llama-index-postprocessor-tei-rerank 0.6.0.

Raises AssertionError or TypeError without a word: this client does not look at the status.
"""

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

ranker = TextEmbeddingInference(base_url="http://127.0.0.1:8000", top_n=2)
nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
ranked = [(node.text, node.score) for node in ranker.postprocess_nodes(nodes, query_str=query)]
