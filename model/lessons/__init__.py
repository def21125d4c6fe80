"""The mechanism, step by step."""
