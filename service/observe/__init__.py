"""Observability: metrics, logs and traces."""
