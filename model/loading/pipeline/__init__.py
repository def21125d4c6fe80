"""sentence-transformers' modules behind its Transformer: their keys, layers, masks and routes."""
