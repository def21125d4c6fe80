"""Embeddings, huggingface-api-haystack 3.1.0: HuggingFaceAPITextEmbedder, HuggingFaceAPIDocumentEmbedder.

Without `normalize` it asks for unnormalised vectors.

Raises HfHubHTTPError.
"""

from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)

how = {
    "api_type": "text_embeddings_inference",
    "api_params": {"url": "http://127.0.0.1:8000"},
    "normalize": True,
}
of_query = HuggingFaceAPITextEmbedder(**how).run(query)["embedding"]
documents = [Document(content=text) for text in texts]
embedded = HuggingFaceAPIDocumentEmbedder(**how).run(documents=documents)["documents"]
vectors = [document.embedding for document in embedded]
