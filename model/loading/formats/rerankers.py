"""A reranker made of a decoder: sentence-transformers' CrossEncoder of Transformer and LogitScore.

chat_template.jinja, or tokenizer_config.json    how query and document become one text
1_LogitScore/config.json                         the tokens that say yes and no

It scores a pair by what the model would say next, after the last token h of the filled template:

    score = W[yes] h - W[no] h        W the head over the vocabulary, else the tied word embeddings

whose sigmoid is the softmax over both that Qwen3-Reranker's card has. Only that row is multiplied.

Source: sentence-transformers 6.2, cross_encoder/modules/logit_score.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from model.errors import CheckpointError
from model.families.family import CAUSAL_LM
from model.loading.files import CONFIG, WEIGHTS, read_object
from model.loading.formats.folder import FolderFormat, ReadingRules
from model.loading.modules import (
    LOGIT_SCORE,
    find_encoder_folder,
    is_generative_reranker,
    read_modules,
    read_optional,
)
from model.loading.task_heads import HeadSource, read_activations
from model.loading.tensors import check_tensors
from model.loading.tokenizer_settings import TOKENIZER_CONFIG
from model.pooling import Dense, Pooling, identity
from model.projection import Projection
from model.task_heads import Classifier
from model.text.template import Template

CHAT_TEMPLATE_FILE = "chat_template.jinja"  # how pairs are joined


class Reranker(FolderFormat):
    """The format of a folder with a decoder that ranks pairs by one token's logit."""

    @staticmethod
    def fits(folder: Path, raw: Mapping[str, Any]) -> bool:
        """Tell whether a folder with this config.json has this format."""
        return is_generative_reranker(folder)

    def digest_facts(self) -> Mapping[str, Any]:
        """Return the template and the answer tokens, for the digest."""
        return {"reranker": [repr(self.read_template()), *self._read_answer_tokens()]}

    def read_template(self) -> Template:
        """Return the chat template that joins query and document.

        Raises:
            CheckpointError: there is no template, or one that does more than name places.
        """
        own = find_encoder_folder(self.folder)
        stored: object = read_optional(own / TOKENIZER_CONFIG).get("chat_template")
        if (own / CHAT_TEMPLATE_FILE).is_file():
            stored = (own / CHAT_TEMPLATE_FILE).read_text("utf-8")
        if not isinstance(stored, str):
            raise CheckpointError(
                f"a CrossEncoder with a {LOGIT_SCORE} needs one {CHAT_TEMPLATE_FILE}"
            )
        return Template.parse(stored)

    def read_heads(self, parts: HeadSource, reading: ReadingRules) -> tuple[Classifier]:
        """Return the classifier of the last token's vector, whose one class is the score.

        Raises:
            CheckpointError: another family, tokens beyond the vocabulary, or no such weights.
        """
        config, (yes, no) = parts.config, self._read_answer_tokens()
        if (recipe := parts.family.head_recipes.get(CAUSAL_LM)) is None:
            raise CheckpointError(f"{LOGIT_SCORE}: not supported: of {config.family!r}")
        beyond = [id for id in (yes, no) if id is not None and not 0 <= id < config.vocabulary]
        if beyond:
            problem = f"token {beyond[0]}, and the vocabulary has {config.vocabulary}"
            raise CheckpointError(f"{LOGIT_SCORE}: not supported: {problem}")
        output = f"{recipe.output}.weight"
        tied = parts.raw.get("tie_word_embeddings", False) and output not in parts.tensors
        name = parts.embeddings_name if tied else output
        found = {name: parts.tensors[name]} if name in parts.tensors else {}
        check_tensors(found, {name: (config.vocabulary, config.width)}, WEIGHTS)
        rows: Tensor = found[name].read()
        row = rows[yes].float() if no is None else rows[yes].float() - rows[no].float()
        linear = parts.kernels.linear(row[None].to(parts.device), None)
        project = Projection((Dense(linear, identity, 1, config.width),))
        last = Pooling(("last",), normalize=False)
        return (Classifier(("LABEL_0",), last, project, *read_activations(parts, 1)),)

    def _read_answer_tokens(self) -> tuple[int, int | None]:
        """Return the ids of the tokens for yes and no; None: without a token for no."""
        path = next(path for kind, path in read_modules(self.folder) if kind == LOGIT_SCORE)
        config = read_object(path / CONFIG)
        yes, no = config.get("true_token_id"), config.get("false_token_id")
        if type(yes) is not int or not isinstance(no, int | None):
            problem = f"true_token_id {yes!r}, false_token_id {no!r}"
            raise CheckpointError(f"{path.name}: not supported: {problem}")
        return yes, no
