"""OpenAI's API: embeddings and models."""
