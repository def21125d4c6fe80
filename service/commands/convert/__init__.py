"""`headlight convert`: the pickles of a model folder become safetensors, once."""
