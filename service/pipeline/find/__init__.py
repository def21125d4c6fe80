"""What a request names, found in the model."""
