"""A Serve configuration: read and checked."""
