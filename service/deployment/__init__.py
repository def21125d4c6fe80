"""A Serve configuration: read, checked, sent to a cluster, and awaited."""
