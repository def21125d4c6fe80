"""The encoder: torch, safetensors, tokenizers and the standard library only."""
