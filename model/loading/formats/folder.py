"""The format of most folders, and the base class of the others in formats/__init__.py."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model.config import EncoderConfig, Side
from model.loading.pipeline import router
from model.loading.sentence_transformers import Prompts
from model.loading.task_heads import HeadSource, read_task_head
from model.loading.tensors import StoredTensor
from model.loading.tokenizer_settings import TokenizerRules
from model.pooling import Pooling
from model.task_heads import Splade, TaskHead
from model.text.frame import Role
from model.text.template import Template
from model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How a checkpoint's texts are read.

    Args:
        rules: of the tokenizer.
        max_tokens: most tokens of a text.
        roles: how queries and documents of a late interaction are read; None elsewhere.
    """

    rules: TokenizerRules
    tokenizer: Tokenizer
    max_tokens: int
    prompts: Prompts
    roles: Mapping[Side, Role] | None


@dataclass(frozen=True)
class FolderFormat:
    """The format with an encoder, and the task head that config.json names, if any.

    Args:
        folder: of the checkpoint.
        raw: config.json.
    """

    folder: Path
    raw: Mapping[str, Any]

    @staticmethod
    def fits(folder: Path, raw: Mapping[str, Any]) -> bool:
        """Tell whether a folder with this config.json has this format."""
        return True

    def own_files(self) -> list[Path]:
        """Return the files that enter the digest besides those of all formats, in a fixed order."""
        return []

    def digest_facts(self) -> Mapping[str, Any]:
        """Return other facts that enter the digest, by name."""
        return {}

    def read_template(self) -> Template | None:
        """Return the template that joins pairs; None where special tokens go around them."""
        return None

    def read_roles(self, config: EncoderConfig, tokenizer: Tokenizer) -> Mapping[Side, Role] | None:
        """Return how queries and documents are read; None where they are read alike."""
        return None

    def choose_pooling(self, stored: Pooling) -> Pooling:
        """Return the pooling, given the one of sentence-transformers' files."""
        return stored

    def choose_max_tokens(self, stored: int, config: EncoderConfig) -> int:
        """Return the most tokens of a sequence, given what the tokenizer's files say."""
        return stored

    def select_encoder_tensors(
        self, tensors: Mapping[str, StoredTensor]
    ) -> Mapping[str, StoredTensor]:
        """Return the tensors without those that belong to a head of this format."""
        return tensors

    def read_heads(self, parts: HeadSource, reading: ReadingRules) -> tuple[TaskHead, ...]:
        """Return the task heads.

        Raises:
            CheckpointError: a part of one is missing, misshapen or not finite, or not supported.
        """
        head = read_task_head(parts)
        if isinstance(head, Splade):
            roles = router.read_roles(self.folder, reading.max_tokens, reading.prompts.texts)
            head = replace(head, roles=roles)
        return () if head is None else (head,)
