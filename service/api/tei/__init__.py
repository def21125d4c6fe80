"""The API of Hugging Face's text-embeddings-inference (TEI)."""
