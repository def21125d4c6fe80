"""What an API key is, and which ones let in now."""
