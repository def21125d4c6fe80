"""The HTTP edge of a replica: admits a request, reads it, finds its handler, sends the answer."""
