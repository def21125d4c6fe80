"""Embeddings, huggingface-hub 1.33.0: feature_extraction.

Raises HfHubHTTPError.
"""

from huggingface_hub import InferenceClient

client = InferenceClient("http://127.0.0.1:8000")
vectors = client.feature_extraction(texts).tolist()
