"""A checkpoint's tokenizer_config.json and tokenizer_args, over HTTP and by the library."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import httpx
import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import AutoTokenizer

from tests.conftest import posted
from tests.service.conftest import Serving
from tests.task_heads import checkpoint

QUERY = "Why is the Dog here?"
TEXTS = [
    "A caf\u00e9 in M\u00e9xico \u4f60\u597d ate",
    "It was " + "very " * 40 + "hungry",
    "All is WELL",
]
CLOSE = 1e-5


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


async def ask(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """An answer that must come."""
    return await posted(http, path, body)


SAID: dict[str, dict[str, Any]] = {
    "cased, cut on the left": {"do_lower_case": False, "strip_accents": False}
    | {"tokenize_chinese_chars": False, "truncation_side": "left"},
    "generic, other tokens": {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[MASK]"}
    | {"model_input_names": ["input_ids", "attention_mask"]},
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
async def test_pairs_are_ranked_as_cross_encoder_reads_them(
    serving: Serving, tmp_path: Path, said: dict[str, Any]
) -> None:
    """Where a request leaves the side of a cut open, it is the checkpoint's."""
    checkpoint(tmp_path, "ForSequenceClassification", num_labels=1)
    change(tmp_path / "tokenizer_config.json", **said)
    made = AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer  # with what is said
    made.save(str(tmp_path / "tokenizer.json"))
    theirs = CrossEncoder(str(tmp_path), device="cpu").predict([(QUERY, text) for text in TEXTS])

    async with serving(tmp_path) as http:
        told = await ask(http, "/v1/rerank", query=QUERY, documents=TEXTS)
        tei = await ask(http, "/rerank", query=QUERY, texts=TEXTS)
        right = await ask(
            http, "/rerank", query=QUERY, texts=TEXTS, truncate=True, truncation_direction="Right"
        )
        again = await ask(
            http, "/rerank", query=QUERY, texts=TEXTS, truncate=True, truncation_direction="Left"
        )

    scores = {row["index"]: row["relevance_score"] for row in told["results"]}
    np.testing.assert_allclose([scores[i] for i in range(3)], theirs, rtol=0, atol=CLOSE)
    assert {row["index"]: row["score"] for row in tei} == pytest.approx(scores, abs=CLOSE)
    sides = [{row["index"]: row["score"] for row in rows}[1] for rows in (right, again)]
    own = sides[said.get("truncation_side") == "left"]
    assert scores[1] == pytest.approx(own, abs=CLOSE) and abs(sides[0] - sides[1]) > CLOSE


async def test_arguments_of_sentence_transformers_are_followed(
    serving: Serving, tmp_path: Path
) -> None:
    """tokenizer_args over tokenizer_config.json, and config_args over config.json."""
    base, folder = tmp_path / "base", tmp_path / "saved"
    checkpoint(base, "Model")
    SentenceTransformer(str(base), device="cpu").save_pretrained(str(folder))
    plain = await vectors(serving, folder)
    change(
        folder / "sentence_bert_config.json",
        tokenizer_args={"do_lower_case": False, "strip_accents": False, "model_max_length": 11}
        | {"truncation_side": "left", "use_fast": True},
        config_args={"hidden_act": "relu"},
        model_args={"attn_implementation": "eager"},
    )
    peer = SentenceTransformer(str(folder), device="cpu")
    theirs = peer.encode(TEXTS)
    peer.tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))  # with what is said

    ours = await vectors(serving, folder)

    np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE)
    assert np.abs(plain - theirs).max() > 0.01


async def vectors(serving: Serving, folder: Path) -> Any:
    """What TEI's route makes of the texts, and cuts where the checkpoint says."""
    async with serving(folder) as http:
        return np.array(await ask(http, "/embed", inputs=TEXTS, normalize=False))


MANY_TEXTS = """
import os
from service.tables import cores
cores.count_cores = lambda: 64
import service.engine
from model.loading.files import TOKENIZER
from service.files.weights import BUNDLED_MODEL, locate_model
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(str(locate_model(BUNDLED_MODEL).folder / TOKENIZER))
before = len(os.listdir("/proc/self/task"))
tokenizer.encode_batch(["a text"] * 1000)
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_many_texts_are_tokenized_by_three_threads_at_most() -> None:
    """On a machine of many cores, which the lanes take."""
    own = ("RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM")
    others = {name: value for name, value in os.environ.items() if name not in own}

    ran = subprocess.run(
        [sys.executable, "-c", MANY_TEXTS], capture_output=True, text=True, check=True, env=others
    )

    assert ran.stdout.split() == ["3"]
