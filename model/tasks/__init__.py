"""What stands behind the encoder for a task: classes, labels of tokens, sparse vectors."""
