"""Embeddings, huggingface-hub 1.33.0: sentence_similarity.

It posts to the address itself, which has TEI's path.

Raises HfHubHTTPError.
"""

from huggingface_hub import InferenceClient

client = InferenceClient("http://127.0.0.1:8000/similarity")
similarities = client.sentence_similarity(query, other_sentences=texts)
