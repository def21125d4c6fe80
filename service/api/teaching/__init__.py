"""The mechanism, and one layer, step by step."""
