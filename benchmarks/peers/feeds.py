"""Texts as an ONNX graph takes them: token ids, padded to the longest text of a batch."""

import numpy as np
from tokenizers import Tokenizer


class Feeds:
    """The tokenizer of the model in a folder."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")  # pads and cuts at 128
        self.tokenizer.enable_padding()
        self.tokenizer.enable_truncation(512)

    def __call__(self, texts):
        """Return the graph's three inputs, each (texts, tokens)."""
        cut = self.tokenizer.encode_batch(texts)
        return {
            "input_ids": np.array([each.ids for each in cut]),
            "attention_mask": np.array([each.attention_mask for each in cut]),
            "token_type_ids": np.array([each.type_ids for each in cut]),
        }


def encode_sorted(encode, texts, pieces):
    """Return the vectors of texts, (texts, width), run by length, this many at a time."""
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    vectors = np.empty((len(texts), 384), dtype=np.float32)
    for start in range(0, len(texts), pieces):
        places = order[start : start + pieces]
        vectors[places] = encode([texts[place] for place in places])
    return vectors
