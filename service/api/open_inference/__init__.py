"""The Open Inference Protocol v2, with binary tensors."""
