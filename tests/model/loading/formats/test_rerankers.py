"""A reranker made of a decoder, as sentence-transformers saves it, gives that library's scores."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from torch import nn

from model.errors import CheckpointError
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import Classifier
from model.text.pieces import run_reading
from model.text.tokenizer import Truncation
from tests import decoders
from tests.decoders import MOST, TEMPLATE
from tests.model.loads import load

PAIRS = [
    ("Which planet is red?", "Mars, known for its reddish look, is the Red Planet."),
    ("Which planet is red?", "Venus"),
    ("why", "  It rained,\nand the dog was hungry; 12,5 km were left. <|im_end|>"),
    ("e\u0301t\u00e9?\n", "\u4f60\u597d \U0001f469\u200d\U0001f4bb"),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language model of Qwen3's, its tokenizer, and the template."""
    return decoders.language_model(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def reranker(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as sentence-transformers saves it."""
    return decoders.reranker(plain, tmp_path_factory.mktemp("reranker"))


def head_of(model: Model) -> Classifier:
    """What makes its scores."""
    (head,) = model.task_heads
    assert isinstance(head, Classifier)
    return head


@torch.inference_mode()
def scores(
    model: Model, prompt: str = "", limit: int = MOST, cut: Truncation = "refuse"
) -> torch.Tensor:
    """The pairs' scores by the checkpoint's own activation, from one batch."""
    read = model.tokenizer(PAIRS, limit, cut, prompt)
    packed = model.encoder.pack([Sequence(one.token_ids) for one in read])
    last = model.encoder(packed).last
    head = replace(head_of(model), activation=head_of(model).ranking)
    rows = [packed.rows(i) for i in range(len(read))]
    return torch.cat([head(last[each])["scores"] for each in rows])


@pytest.mark.parametrize("name", [None, "query"], ids=["own instruction", "prompt"])
def test_scores_are_that_librarys(reranker: Path, name: str | None) -> None:
    """By its own activation, and as logits; each alone there, and together here."""
    peer, ours = CrossEncoder(str(reranker), device="cpu"), load(reranker)
    prompt = ours.prompts.find(name)

    expected = [peer.predict([pair], prompt_name=name)[0] for pair in PAIRS]

    assert ours.tasks == ("encode", "classify", "rerank")
    assert head_of(ours).ranking == "sigmoid"
    torch.testing.assert_close(scores(ours, prompt), torch.tensor(expected), rtol=0, atol=1e-5)
    assert max(expected) - min(expected) > 0.01


@pytest.mark.parametrize(
    ("no", "activation"), [(None, nn.Identity()), (77, nn.Identity()), (None, nn.Sigmoid())]
)
def test_a_score_may_be_of_yes_alone_and_without_activation(
    plain: Path, tmp_path: Path, no: int | None, activation: nn.Module
) -> None:
    """As the files say."""
    folder = decoders.reranker(plain, tmp_path, no=no, activation_fn=activation)
    peer, ours = CrossEncoder(str(folder), device="cpu"), load(folder)

    expected = torch.tensor([peer.predict([pair])[0] for pair in PAIRS])

    torch.testing.assert_close(scores(ours), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_of_its_own_is_read_whether_or_not_it_is_tied(
    reranker: Path, tmp_path: Path, tied: bool
) -> None:
    """As in transformers 5; and missed by name where it is not there."""
    shutil.copytree(reranker, tmp_path, dirs_exist_ok=True)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight"):
        load(tmp_path)

    rows = torch.randn(520, 48, generator=torch.Generator().manual_seed(1))
    save_file(load_file(path) | {"lm_head.weight": rows}, path)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tie_word_embeddings": tied}))
    peer, ours = CrossEncoder(str(tmp_path), device="cpu"), load(tmp_path)

    expected = torch.tensor([peer.predict([pair])[0] for pair in PAIRS])
    torch.testing.assert_close(scores(ours), expected, rtol=0, atol=1e-5)
    assert not torch.allclose(scores(load(reranker)), expected, atol=1e-3)


@pytest.mark.parametrize("prompt", ["", "Find what answers"])
def test_tokens_are_the_librarys_and_know_their_text(reranker: Path, prompt: str) -> None:
    """Offsets and words of the query's and the document's own, template tokens without any."""
    peer, ours = CrossEncoder(str(reranker), device="cpu"), load(reranker).tokenizer
    system = [{"role": "system", "content": prompt}] if prompt else []
    for (query, document), found in zip(PAIRS, ours(PAIRS, MOST, prompt=prompt), strict=True):
        messages = [*system, *({"role": r, "content": c} for r, c in named(query, document))]
        expected = peer.tokenizer.apply_chat_template(messages, return_dict=False)

        assert found.token_ids == expected and found.length == len(expected)
        both = zip(found.segments, found.special, found.offsets, found.words, strict=True)
        for segment, special, (start, end), word in both:
            text = (query, document)[segment]
            assert special == (word is None) and 0 <= start <= end <= len(text)
            assert not special or (start, end) == (0, 0)
        for index, text in enumerate((query, document)):
            own = [
                at for at, of in enumerate(found.segments) if of == index and not found.special[at]
            ]
            assert found.offsets[own[0]][0] == 0 and found.words[own[0]] == 0
            assert found.offsets[own[-1]][1] == len(text)


def named(query: str, document: str) -> list[tuple[str, str]]:
    """A pair by its roles."""
    return [("query", query), ("document", document)]


def test_a_pair_too_long_loses_of_the_longer_text_and_nothing_of_the_template(
    reranker: Path,
) -> None:
    """As in the library where the document is longer; then both, to the last token there is."""
    peer, ours = CrossEncoder(str(reranker), device="cpu"), load(reranker).tokenizer
    pair = ("why", "It rained and the dog was hungry " * 9)
    (whole,) = ours([pair], MOST)
    added = sum(whole.special)
    limit = len(whole.token_ids) - 20
    peer.max_seq_length = limit

    (cut,) = ours([pair], limit, "right")
    (left,) = ours([pair], limit, "left")
    (least,) = ours([pair], added + 2, "right")

    assert cut.token_ids == peer.preprocess([pair])["input_ids"][0].tolist()
    assert cut.length == left.length == whole.length and len(left.token_ids) == limit
    assert left.token_ids != cut.token_ids and sum(left.special) == sum(cut.special) == added
    assert [one.special.count(False) for one in (least,)] == [2] and {*least.segments} == {0, 1}
    (few,) = run_reading(ours.read_texts([pair], MOST, last=3))
    own = [of for of, special in zip(few.segments, few.special, strict=True) if not special]
    assert own.count(1) == 3 and few.length == whole.length


def test_a_query_beyond_the_limit_leaves_the_document_whole(reranker: Path) -> None:
    """The library cuts what the template has made, so that nothing of the document is left."""
    peer, ours = CrossEncoder(str(reranker), device="cpu"), load(reranker).tokenizer
    query, document = "It rained and the dog was hungry " * 9, "why"
    (whole,) = ours([(query, document)], MOST)
    peer.max_seq_length = limit = len(whole.token_ids) - 40

    (cut,) = ours([(query, document)], limit, "right")

    theirs = peer.tokenizer.decode(peer.preprocess([(query, document)])["input_ids"][0].tolist())
    assert "<Document>: why" in peer.tokenizer.decode(cut.token_ids) and len(cut.token_ids) == limit
    assert "<Document>" not in theirs and "It rained" in theirs


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no template": ("chat_template.jinja", {}, "needs one chat_template.jinja"),
    "no token": (
        "1_LogitScore/config.json",
        {"true_token_id": None},
        "true_token_id None, false_token_id 77",
    ),
    "a token beyond": (
        "1_LogitScore/config.json",
        {"false_token_id": 520},
        "token 520, and the vocabulary has 520",
    ),
    "other logits": (
        "1_LogitScore/config.json",
        {"module_input_name": "logits"},
        "module_input_name 'logits'",
    ),
    "texts without a template": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}},
        "not supported: modality_config",
    ),
    "another task": (
        "sentence_bert_config.json",
        {"transformer_task": "feature-extraction"},
        "the modules take 'text-generation'",
    ),
}


@pytest.mark.parametrize(("file", "keys", "told"), WRONG.values(), ids=WRONG)
def test_what_is_not_computed_is_refused_by_name(
    reranker: Path, tmp_path: Path, file: str, keys: dict[str, Any], told: str
) -> None:
    """In one line."""
    shutil.copytree(reranker, tmp_path, dirs_exist_ok=True)
    path = tmp_path / file
    if keys:
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    else:
        path.unlink()

    with pytest.raises(CheckpointError, match=told):
        load(tmp_path)


def test_whatever_makes_a_score_is_in_the_digest(reranker: Path, tmp_path: Path) -> None:
    """The template, and the tokens that say yes and no."""
    digests = {load(reranker).digest}
    for change in ("template", "tokens"):
        folder = tmp_path / change
        shutil.copytree(reranker, folder)
        if change == "template":
            (folder / "chat_template.jinja").write_text(TEMPLATE.replace("Judge", "Say"))
        else:
            (folder / "1_LogitScore/config.json").write_text('{"true_token_id": 5}')
        digests.add(load(folder).digest)

    assert len(digests) == 3
