"""Our own API of questions: POST /v1/similarity."""
