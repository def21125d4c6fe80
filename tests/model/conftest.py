"""The bundled model, transformers' own computation of it, and the texts that both read."""

import os
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing here may call out

import pytest
import torch
from torch import Tensor
from transformers import BertModel
from transformers.utils import logging as transformers_logging

from model import kernels
from model.loading import checkpoint
from model.loading.checkpoint import Model
from service.files.weights import BUNDLED_MODEL, locate_model

CPU = torch.device("cpu")
TEXTS = Path(__file__).parent / "texts.txt"  # sentences, a blank line, the sentences of an essay
PARTS = (1, 3, 6, 12, 17, 24)  # sentences of the essay: 22 to 454 tokens
LONGEST = 512  # rows of the bundled model's position table

Reference = Callable[[list[int]], tuple[list[Tensor], Tensor]]

transformers_logging.disable_progress_bar()


@pytest.fixture(scope="session")
def folder() -> Path:
    """Where the bundled model's files lie."""
    return locate_model(BUNDLED_MODEL)[0]


@pytest.fixture(scope="session")
def model(folder: Path) -> Model:
    """The bundled model as a replica on a CPU loads it."""
    return checkpoint.load_checkpoint(
        folder, CPU, torch.float32, kernels.choose_kernels(CPU, torch.float32)
    )


@pytest.fixture(scope="session")
def plain(folder: Path) -> Model:
    """The bundled model on public torch operators alone."""
    return checkpoint.load_checkpoint(folder, CPU, torch.float32, kernels.PLAIN)


@pytest.fixture(scope="session")
def essay() -> str:
    """A text longer than the bundled model takes."""
    return TEXTS.read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ").strip()


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Real sentences, then ever longer parts of the essay; all within 512 tokens."""
    sentences, essay = (part.splitlines() for part in TEXTS.read_text("utf-8").split("\n\n"))
    return sentences + [" ".join(essay[:count]) for count in PARTS]


@pytest.fixture(scope="session")
def sequences(model: Model, texts: list[str], essay: str) -> list[list[int]]:
    """The texts as token ids, the essay cut to the longest that fits, and a lone token."""
    cut = model.tokenizer([(text,) for text in [*texts, essay]], LONGEST, "right")
    return [tokenized.token_ids for tokenized in cut] + [[2748]]


@pytest.fixture(scope="session")
def reference(folder: Path) -> Reference:
    """What transformers computes from token ids, alone and unfused.

    Returns every hidden state, (tokens, width) each, and the maps of all heads,
    (layers, heads, query, key).
    """
    bert = BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)

    @cache
    def compute(ids: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
        with torch.inference_mode():
            out = bert.eval()(
                torch.tensor([ids]), output_hidden_states=True, output_attentions=True
            )
        return [state[0] for state in out.hidden_states], torch.cat(out.attentions)

    return lambda ids: compute(tuple(ids))


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Generator[None]:
    """Threads that wait for each other take many times as long on a machine with other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads() -> Generator[Callable[[int], None]]:
    """Set the number of cores that torch uses; afterwards it is one again."""
    yield torch.set_num_threads
    torch.set_num_threads(1)
