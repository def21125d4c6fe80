"""Which parts of documents carry their scores."""
