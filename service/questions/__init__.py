"""The questions that a request may ask: a folder each, with its wire classes and computation."""
