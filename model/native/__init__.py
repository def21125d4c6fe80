"""The forward pass without the interpreter: model/encoder.py's loop as one compiled operator."""
