"""What the outside sees: metrics, logs, traces."""
