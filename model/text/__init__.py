"""What a text becomes: tokens, and back."""
