"""A tokenizer made of a vocabulary's own files, where a folder has no tokenizer.json."""
