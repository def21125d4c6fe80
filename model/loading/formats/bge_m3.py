"""The two linears that BGE-M3 has next to its encoder: sparse weights, and many vectors.

sparse_linear.safetensors    a number for each token: the weight of its id
colbert_linear.safetensors   a vector for each token except the first

FlagEmbedding saves them as .pt files, which `headlight convert` turns into these. Of a text whose
last hidden states are h_0 .. h_n, h_0 of <s> and h_n of </s>, it computes

    dense     h_0 / |h_0|, where modules.json does not say otherwise
    sparse    of each id the largest relu(w h_i + b) of its tokens; none of cls, eos, pad and unk
    vectors   of every token from h_1 on, </s> included, W h_i + b, scaled to length 1

and scores a query and a document by the product of the dense vectors, the sum of the products of
the weights that they share, and the mean over the query's vectors of the largest product with one
of the document's.

Source: FlagEmbedding 1.4, finetune/embedder/encoder_only/m3/modeling.py (`_dense_embedding`,
`_sparse_embedding`, `_colbert_embedding`, `compute_colbert_score`) and
inference/embedder/encoder_only/m3.py (`_process_token_weights`, `_process_colbert_vecs`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.config import Side
from model.errors import CheckpointError, advise_conversion
from model.loading.formats.colbert import LateInteraction
from model.loading.formats.folder import FolderFormat, ReadingRules
from model.loading.modules import read_modules
from model.loading.task_heads import HeadSource
from model.loading.tensors import Shape, check_tensors, open_tensors
from model.pooling import Dense, Pooling, identity
from model.projection import Projection
from model.task_heads import Lexical, VectorHead
from model.text.frame import Role

SPARSE_FILE, COLBERT_FILE = "sparse_linear.safetensors", "colbert_linear.safetensors"
UNWEIGHTED_TOKENS = ("cls_token", "eos_token", "pad_token", "unk_token")  # get no sparse weight
FIRST_VECTOR = 1  # place of the first token with a vector
BGE_M3_POOLING = Pooling(("cls",), normalize=True)  # of a folder without modules
BOTH_SIDES: tuple[Side, ...] = ("query", "document")


class BgeM3(FolderFormat):
    """The format of BGE-M3: an encoder, a linear for sparse vectors and one for many vectors."""

    @staticmethod
    def fits(folder: Path, raw: Mapping[str, Any]) -> bool:
        """Tell whether a folder with this config.json has this format."""
        return bool(find_linear_files(folder))

    def own_files(self) -> list[Path]:
        """List the files of the linears."""
        return find_linear_files(self.folder)

    def choose_pooling(self, stored: Pooling) -> Pooling:
        """Return FlagEmbedding's pooling in a folder without modules.json, else the stored one."""
        return stored if read_modules(self.folder) else BGE_M3_POOLING

    def read_heads(self, parts: HeadSource, reading: ReadingRules) -> tuple[Lexical, VectorHead]:
        """Read the heads for sparse weights and for many vectors; refuse any other head.

        Raises:
            CheckpointError: there is one, or a tensor is missing, extra, misshapen or not finite.
        """
        if LateInteraction.fits(self.folder, self.raw) or super().read_heads(parts, reading):
            names = " and ".join(path.name for path in self.own_files())
            raise CheckpointError(f"{names}: not supported: next to another task head")
        sparse, vectors = (
            Projection((_read_dense(parts, name, outputs),))
            for name, outputs in ((SPARSE_FILE, 1), (COLBERT_FILE, None))
        )
        texts = reading.prompts.texts
        roles = {side: Role(reading.max_tokens, prompt=texts.get(side)) for side in BOTH_SIDES}
        named = filter(None, map(reading.rules.special_token, UNWEIGHTED_TOKENS))
        unused = frozenset(id for id in map(reading.tokenizer.id_of, named) if id is not None)
        return Lexical(sparse, unused), VectorHead(
            vectors, roles, first_place=FIRST_VECTOR, mean=True
        )


def find_linear_files(folder: Path) -> list[Path]:
    """Find the files of both linears, in a fixed order; none in a folder without them.

    Raises:
        CheckpointError: the folder has only one of them.
    """
    paths = [folder / SPARSE_FILE, folder / COLBERT_FILE]
    present = [path for path in paths if path.is_file()]
    if len(present) == 1:
        lacking = next(path for path in paths if path not in present)
        pickle = lacking.with_suffix(".pt")
        hint = f"; {pickle.name} is a pickle: {advise_conversion(str(folder))}"
        hint = hint if pickle.is_file() else ""
        raise CheckpointError(f"{folder} has {present[0].name} and lacks {lacking.name}{hint}")
    return present


def find_unread_pickles(folder: Path) -> list[str]:
    """Return the names of a folder's .pt files of the linears, where safetensors are missing."""
    names = [Path(name).with_suffix(".pt") for name in (SPARSE_FILE, COLBERT_FILE)]
    present = [name.name for name in names if (folder / name).is_file()]
    return [] if find_linear_files(folder) else present


def _read_dense(parts: HeadSource, name: str, outputs: int | None) -> Dense:
    """Read a linear, (outputs, width), and its bias; outputs None: any number."""
    with open_tensors({name: parts.folder / name}) as tensors:
        stored = tensors["weight"].shape if "weight" in tensors else ()
        rows, width = outputs or max((1, *stored[:1])), parts.config.width
        shapes: dict[str, Shape] = {"weight": (rows, width), "bias": (rows,)}
        check_tensors(tensors, shapes, name)
        weight, bias = (tensors[key].read().float().to(parts.device) for key in shapes)
    return Dense(parts.kernels.linear(weight, bias), identity, rows, rows * width)
