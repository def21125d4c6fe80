"""HTTP and Ray around the model: read encode/gateway.py first."""
