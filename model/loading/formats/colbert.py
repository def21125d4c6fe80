"""Read a late interaction (ColBERT) from PyLate's files, or those of Stanford's ColBERT.

Those of sentence-transformers' own MultiVectorEncoder are read in pipeline/late.py.

PyLate     modules.json                       Transformer, Dense .., each token by itself
           config_sentence_transformers.json  markers, lengths, filling, skiplist
Stanford   config.json                        architectures: HF_ColBERT
           model.safetensors                  linear.weight next to the encoder's
           artifact.metadata                  the same choices by other names

Sources: PyLate 1.6, models/colbert.py and models/Dense.py; ColBERT 0.2, modeling/ and
infra/config/settings.py.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.config import EncoderConfig, Side
from model.errors import CheckpointError, refuse_unsupported
from model.families.fields import find_differences
from model.loading.files import WEIGHTS
from model.loading.formats.folder import FolderFormat, ReadingRules
from model.loading.modules import PROMPTS_FILE, find_token_layers, read_model_type, read_optional
from model.loading.pipeline import late, layers
from model.loading.task_heads import HeadSource
from model.loading.tensors import StoredTensor, check_tensors
from model.pooling import Dense, identity
from model.projection import Projection
from model.task_heads import VectorHead
from model.text.frame import Role, Token
from model.text.tokenizer import Tokenizer

STANFORD_FILE = "artifact.metadata"  # Stanford's settings
STANFORD_LINEAR = "linear.weight"  # of Stanford's files, next to the encoder's tensors
QUERY_LENGTH, DOCUMENT_LENGTH = 32, 180  # tokens, where PyLate's file does not say
STANFORD_LENGTH = 220  # tokens of a document, where Stanford's file does not say
SHORTEST_LENGTH = 4  # tokens: the special ones, the marker, and one of the text
SCORING_KEYS = {"similarity": "cosine", "interaction": "colbert"}  # supported values in Stanford's

Roles = Mapping[Side, Role]  # how either side's texts are read


@dataclass(frozen=True, slots=True)
class LateChoices:
    """The settings that PyLate's and Stanford's files have in common.

    Args:
        file: the name of the file they are from.
        markers: of a query and of a document; "": no marker.
        lengths: most tokens of a query and of a document.
        expand: whether queries are filled up with mask tokens.
        attend: whether other tokens attend to the filling.
        skiplist: words that get no vector in documents.
    """

    file: str
    markers: tuple[str, str]
    lengths: tuple[int, int]
    expand: bool
    attend: bool
    skiplist: list[str]


class LateInteraction(FolderFormat):
    """The format of a folder with a late interaction."""

    @staticmethod
    def fits(folder: Path, raw: Mapping[str, Any]) -> bool:
        """Tell whether a folder with this config.json has this format."""
        is_multi_vector = read_model_type(folder) == "MultiVectorEncoder"
        return is_multi_vector or bool(find_token_layers(folder)) or _is_stanford(raw)

    def read_roles(self, config: EncoderConfig, tokenizer: Tokenizer) -> Roles:
        """Return how queries and documents are read.

        Raises:
            CheckpointError: a choice is malformed or not supported, or the vocabulary lacks a
                token.
        """
        if read_model_type(self.folder) == "MultiVectorEncoder":
            return late.read_roles(self.folder, config, tokenizer)
        if find_token_layers(self.folder):
            choices = _read_pylate(read_optional(self.folder / PROMPTS_FILE))
        else:
            choices = _read_stanford(read_optional(self.folder / STANFORD_FILE))
        _check_choices(choices, config)
        query, document = (_find_marker(choices, name, tokenizer) for name in choices.markers)
        filling = late.read_mask_token(self.folder, tokenizer) if choices.expand else None
        attended = choices.expand and choices.attend
        length = min(choices.lengths[1], config.max_tokens)
        skipped = _skipped_ids(choices.skiplist, self.folder, tokenizer)
        return {
            "query": Role(choices.lengths[0], query, filling, attended),
            "document": Role(length, document, skipped=skipped),
        }

    def select_encoder_tensors(
        self, tensors: Mapping[str, StoredTensor]
    ) -> Mapping[str, StoredTensor]:
        """Return the tensors without Stanford's linear."""
        own = _is_stanford(self.raw)
        return {name: one for name, one in tensors.items() if name != STANFORD_LINEAR or not own}

    def read_heads(self, parts: HeadSource, reading: ReadingRules) -> tuple[VectorHead]:
        """Return the head with the layers that map each token's vector."""
        dense_layers: list[Dense] = []
        inputs = parts.config.width
        for folder in find_token_layers(self.folder):
            dense_layers.append(layers.read_dense(folder, inputs, parts.device, parts.kernels))
            inputs = dense_layers[-1].outputs
        made = tuple(dense_layers) or (_read_stanford_linear(parts, inputs),)
        return (VectorHead(Projection(made), reading.roles or {}),)


def _is_stanford(raw: Mapping[str, Any]) -> bool:
    """Tell whether a config.json is of Stanford's ColBERT."""
    return "HF_ColBERT" in (raw.get("architectures") or [])


def _read_pylate(config: Mapping[str, Any]) -> LateChoices:
    """Return the settings of PyLate's config_sentence_transformers.json."""
    stored = {key: value for key, value in config.items() if value is not None}
    return LateChoices(
        PROMPTS_FILE,
        (stored.get("query_prefix", "[Q] "), stored.get("document_prefix", "[D] ")),
        (stored.get("query_length", QUERY_LENGTH), stored.get("document_length", DOCUMENT_LENGTH)),
        stored.get("do_query_expansion", True),
        stored.get("attend_to_expansion_tokens", False),
        stored.get("skiplist_words", list(string.punctuation)),
    )


def _read_stanford(config: Mapping[str, Any]) -> LateChoices:
    """Return the settings of Stanford's artifact.metadata; refuse other scores than ColBERT's."""
    refuse_unsupported(STANFORD_FILE, *find_differences(config, SCORING_KEYS))
    mask = config.get("mask_punctuation", True)
    return LateChoices(
        STANFORD_FILE,
        (config.get("query_token_id", "[unused0]"), config.get("doc_token_id", "[unused1]")),
        (config.get("query_maxlen", QUERY_LENGTH), config.get("doc_maxlen", STANFORD_LENGTH)),
        True,
        config.get("attend_to_mask_tokens", False),
        list(string.punctuation) if mask else [],
    )


def _check_choices(choices: LateChoices, config: EncoderConfig) -> None:
    """Refuse settings of the wrong type, and queries that are too long for this encoder."""
    texts = [*choices.markers, *(choices.skiplist if isinstance(choices.skiplist, list) else [0])]
    switches = (choices.expand, choices.attend)
    if not all(isinstance(one, str) for one in texts) or not all(
        isinstance(one, bool) for one in switches
    ):
        raise CheckpointError(f"{choices.file}: expected texts as markers and words, and switches")
    if not all(type(one) is int and one >= SHORTEST_LENGTH for one in choices.lengths):
        problem = f"expected {SHORTEST_LENGTH} or more tokens of a query and a document"
        raise CheckpointError(f"{choices.file}: {problem}, received {choices.lengths}")
    hidden = choices.expand and not choices.attend
    late.check_queries(config, choices.lengths[0], hidden, choices.file)


def _find_marker(choices: LateChoices, name: str, tokenizer: Tokenizer) -> Token | None:
    """Return a marker as a token; None for ""; refuse one that the vocabulary lacks."""
    if not name:
        return None
    if (id := tokenizer.id_of(name)) is None:
        # PyLate would add it, with an untrained vector
        raise CheckpointError(f"{choices.file}: the tokenizer lacks the marker {name!r}")
    return Token(id, name)


def _skipped_ids(words: list[str], folder: Path, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of a skiplist; a word that the vocabulary lacks adds the unknown token's."""
    ids = {tokenizer.id_of(word) for word in words}
    if None in ids:
        name = late.read_special_token(folder, "unk_token") or tokenizer.unknown_token
        unknown = tokenizer.id_of(name) if name else None
        if unknown is None:
            lacking = next(word for word in words if tokenizer.id_of(word) is None)
            raise CheckpointError(f"skiplist_words: the tokenizer lacks {lacking!r}")
        ids.add(unknown)
    return frozenset(id for id in ids if id is not None)


def _read_stanford_linear(parts: HeadSource, inputs: int) -> Dense:
    """Return Stanford's single linear, which has no bias."""
    if STANFORD_LINEAR not in parts.tensors:
        raise CheckpointError(f"{WEIGHTS}: missing {STANFORD_LINEAR}")
    stored = parts.tensors[STANFORD_LINEAR]
    outputs = max((1, *stored.shape[:1]))
    check_tensors({STANFORD_LINEAR: stored}, {STANFORD_LINEAR: (outputs, inputs)}, WEIGHTS)
    linear = parts.kernels.linear(stored.read().float().to(parts.device), None)
    return Dense(linear, identity, outputs, outputs * inputs)
