"""How well labels of a request's own fit texts."""
