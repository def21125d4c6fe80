"""Read sentence-transformers' modules behind its Transformer: keys, layers, masks and routes."""
