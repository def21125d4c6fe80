"""The API of michaelfeil/infinity, without a prefix as it serves it."""
