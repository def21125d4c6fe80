"""Our own API: POST /v1/encode."""
