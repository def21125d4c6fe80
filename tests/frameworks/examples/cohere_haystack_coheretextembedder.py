"""Embeddings, cohere-haystack 11.0.0: CohereTextEmbedder, CohereDocumentEmbedder.

Raises UnprocessableEntityError.
"""

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.cohere import (
    CohereDocumentEmbedder,
    CohereTextEmbedder,
)

how = {
    "api_base_url": "http://127.0.0.1:8000",
    "api_key": Secret.from_token("none"),
    "model": "all-MiniLM-L6-v2",
}
of_query = CohereTextEmbedder(**how).run(query)["embedding"]
documents = [Document(content=text) for text in texts]
embedded = CohereDocumentEmbedder(**how).run(documents=documents)["documents"]
vectors = [document.embedding for document in embedded]
