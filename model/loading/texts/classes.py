"""The class that transformers reads a folder's tokenizer with, from the names in its files."""

from collections.abc import Mapping
from typing import Any

from model.errors import CheckpointError
from model.text.rules import Kind

GENERIC = (
    "TokenizersBackend",
    "PreTrainedTokenizerFast",
    "PreTrainedTokenizer",
    "PythonBackend",
)
BY_FAMILY = {  # by itself; a family that is not here has none
    "bert": "BertTokenizer",
    "electra": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "mpnet": "MPNetTokenizer",
}
KINDS: dict[str, Kind] = {
    "BertTokenizer": "bert",
    "ElectraTokenizer": "bert",
    "DistilBertTokenizer": "bert",
    "RobertaTokenizer": "roberta",
    "LongformerTokenizer": "roberta",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "MPNetTokenizer": "mpnet",
    **dict.fromkeys(GENERIC, "file"),
}
MADE = "AlbertTokenizer"  # of a vocabulary only: none of it rebuilds a tokenizer.json here
TYPED = ("BertTokenizer", "ElectraTokenizer")  # gives token types where nothing is said of them


def read_class(
    family: str, settings: Mapping[str, Any], config: Mapping[str, Any], *, made: bool = False
) -> str:
    """The name of the class, one of KINDS, or MADE.

    Args:
        family: model_type of config.json.
        settings: tokenizer_config.json.
        made: whether the tokenizer is made of its vocabulary.

    Raises:
        CheckpointError: the files name a class that is not known here.
    """
    own = BY_FAMILY.get(family, GENERIC[0])
    named = settings.get("tokenizer_class") or config.get("tokenizer_class") or own
    if own in GENERIC or named in GENERIC:
        return GENERIC[0]  # a family without a class has its file read as it is, whatever is named
    name = named.removesuffix("Fast") if isinstance(named, str) else named
    if made and name == MADE:
        return MADE
    if not isinstance(name, str) or name not in KINDS:
        known = ", ".join(sorted({*KINDS} - {*GENERIC[1:]}))
        raise CheckpointError(f"tokenizer_class {named!r} is not supported; these are: {known}")
    return name
