"""Attention maps: what an answer shows of them, and how they are computed."""
