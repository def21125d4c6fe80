"""The format of most folders, from which each other one of formats.py differs in some answers."""

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
        rules: what is said about the tokenizer, special tokens included.
        max_tokens: of a text.
        roles: how the texts of either side of a late interaction are read; None elsewhere.
    """

    rules: TokenizerRules
    tokenizer: Tokenizer
    max_tokens: int
    prompts: Prompts
    roles: Mapping[Side, Role] | None


@dataclass(frozen=True)
class FolderFormat:
    """An encoder, and the task head that config.json names, if any.

    Args:
        raw: config.json.
    """

    folder: Path
    raw: Mapping[str, Any]

    @staticmethod
    def fits(folder: Path, raw: Mapping[str, Any]) -> bool:
        """Tell whether a folder has this format."""
        return True

    def own_files(self) -> list[Path]:
        """List the files whose bytes count besides those of every folder, in a fixed order."""
        return []

    def digest_facts(self) -> Mapping[str, Any]:
        """Name, for the digest, what else decides an answer."""
        return {}

    def read_template(self) -> Template | None:
        """Read how pairs become one text; None where special tokens go around them."""
        return None

    def read_roles(self, config: EncoderConfig, tokenizer: Tokenizer) -> Mapping[Side, Role] | None:
        """Read how the texts of either side are read; None where there are no sides."""
        return None

    def choose_pooling(self, stored: Pooling) -> Pooling:
        """Return the way to one vector, where sentence-transformers' files say this one."""
        return stored

    def select_encoder_tensors(
        self, tensors: Mapping[str, StoredTensor]
    ) -> Mapping[str, StoredTensor]:
        """Return the tensors that may be the encoder's."""
        return tensors

    def read_heads(self, parts: HeadSource, reading: ReadingRules) -> tuple[TaskHead, ...]:
        """Read what follows the encoder.

        Raises:
            CheckpointError: a part of it is missing, misshapen or not finite, or not supported.
        """
        head = read_task_head(parts)
        if isinstance(head, Splade):
            roles = router.read_roles(self.folder, reading.max_tokens, reading.prompts.texts)
            head = replace(head, roles=roles)
        return () if head is None else (head,)
