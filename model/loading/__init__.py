"""A checkpoint's files -> an encoder."""
