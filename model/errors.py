"""What the model can refuse.

ModelError
    CheckpointError         a folder that cannot be loaded, and every reason why
    SequenceError           an input the loaded model cannot take
        SequenceTooLong
            TooManyWords
        LabelUnreadable
"""

import shlex


def advice(model: str) -> str:
    """Return advice about a pickle, which can run code and is not read.

    Args:
        model: its folder, or its id on the hub.
    """
    return f"`headlight convert {shlex.quote(model)} OUT` makes safetensors of it once"


class ModelError(Exception):
    """The model refuses."""


class CheckpointError(ModelError):
    """A checkpoint that cannot be loaded; the message lists every reason."""


class SequenceError(ModelError):
    """An input the loaded model cannot take."""


class SequenceTooLong(SequenceError):
    """A sequence longer than the model takes.

    Args:
        length: of the sequence, tokens.
        limit: of the model, tokens.
        index: which sequence of several.
    """

    def __init__(self, length: int, limit: int, index: int = 0) -> None:
        super().__init__(length, limit, index)
        self.length, self.limit, self.index = length, limit, index

    def __str__(self) -> str:
        return f"the sequence has {self.length} tokens, the model takes {self.limit}"


class TooManyWords(SequenceTooLong):
    """A text of more words than the model takes; length and limit are of words."""

    def __str__(self) -> str:
        return f"the text has {self.length} words, the model takes {self.limit}"


class LabelUnreadable(SequenceError):
    """A label that no text can be searched for.

    Args:
        index: which label of several.
        marked: whether it holds a token that stands around labels; else it has no token.
    """

    def __init__(self, index: int, *, marked: bool) -> None:
        super().__init__(index, marked)
        self.index, self.marked = index, marked
