"""Embeddings, haystack-ai 3.4.0: OpenAITextEmbedder, OpenAIDocumentEmbedder.

Raises BadRequestError.
"""

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret

how = {
    "api_base_url": "http://127.0.0.1:8000/v1",
    "api_key": Secret.from_token("none"),
    "model": "all-MiniLM-L6-v2",
}
of_query = OpenAITextEmbedder(**how).run(query)["embedding"]
documents = [Document(content=text) for text in texts]
embedded = OpenAIDocumentEmbedder(**how, raise_on_failure=True).run(documents=documents)
vectors = [document.embedding for document in embedded["documents"]]
