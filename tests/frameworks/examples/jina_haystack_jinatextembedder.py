"""Embeddings, jina-haystack 2.0.1: JinaTextEmbedder, JinaDocumentEmbedder.

It asks for floats; `task` is for a checkpoint with prompts.

Raises RuntimeError.
"""

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder, JinaTextEmbedder

how = {
    "base_url": "http://127.0.0.1:8000/v1/embeddings",
    "api_key": Secret.from_token("none"),
    "model": "all-MiniLM-L6-v2",
    "dimensions": 384,
    "late_chunking": False,
}
of_query = JinaTextEmbedder(**how).run(query)["embedding"]
documents = [Document(content=text) for text in texts]
embedded = JinaDocumentEmbedder(**how).run(documents=documents)["documents"]
vectors = [document.embedding for document in embedded]
