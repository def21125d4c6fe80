"""Load a checkpoint's files as an encoder with its tokenizer, pooling and task heads."""
