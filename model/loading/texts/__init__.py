"""How a folder's texts are read, beside its tokenizer.json."""
