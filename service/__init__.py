"""HTTP and Ray around the model: read gateway.py first."""
