"""Errors that the model raises.

ModelError
    CheckpointError         a folder that cannot be loaded, and every reason why
    SequenceError           an input the loaded model cannot take
        SequenceTooLong
"""

import shlex


def advise_conversion(model: str) -> str:
    """Return the advice to convert pickled weights, which are not read: they can run code.

    Args:
        model: its folder, or its id on the hub.
    """
    return f"`headlight convert {shlex.quote(model)} OUT` makes safetensors of it once"


def advise_tokenizer(model: str) -> str:
    """Return the advice to convert a folder whose tokenizer.json is missing or contradicted.

    Args:
        model: its folder, or its id on the hub.
    """
    return f"`headlight convert {shlex.quote(model)} OUT` makes the tokenizer.json it needs once"


class ModelError(Exception):
    """Base of all errors that the model raises."""


class CheckpointError(ModelError):
    """A checkpoint that cannot be loaded; the message lists every reason."""


def refuse_unsupported(where: str, *wrong: str | None) -> None:
    """Refuse what is not supported in a checkpoint's file or module, if anything is named.

    Raises:
        CheckpointError: names it.
    """
    if named := ", ".join(filter(None, wrong)):
        raise CheckpointError(f"{where}: not supported: {named}")


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
