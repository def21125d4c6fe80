"""HTTP and Ray around the model: read pipeline/gateway.py first."""

VERSION = "0.1.0"  # of the service, as pyproject.toml has it
