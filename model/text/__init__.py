"""Text -> tokens, and back."""
