"""What is seen from outside: metrics, logs, traces."""
