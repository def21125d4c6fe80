"""What a head may be asked for, by the names that requests and answers give it."""

from typing import Literal

Activation = Literal["softmax", "sigmoid", "none"]  # logits -> scores
Task = Literal["encode", "classify", "rerank", "label_tokens", "sparse", "multi_vector"]
Side = Literal["query", "document"]  # of a late interaction
