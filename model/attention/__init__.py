"""Attention, and what positions and distances do to it."""
