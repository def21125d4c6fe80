"""`headlight heads` in process: what it prints, draws, keeps and refuses."""

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from model.packing import Sequence
from service.cli import main
from service.engine.lanes import Lanes
from service.files.loading import load_model
from service.files.weights import BUNDLED_MODEL, locate_model
from service.heads import store, survey
from service.heads.alone import ablate_heads
from service.heads.sentences import BUNDLED_CORPUS

DOG = "A dog ate the food because it was hungry."
DIGEST = "sha256:5fc648cb18e4"
CLOSE = 0.01  # largest difference of a measure from the one shipped, on another processor


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache folder of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments: object) -> Result:
    """Run `headlight heads`."""
    return CliRunner().invoke(main, ["heads", *map(str, arguments)], catch_exceptions=False)


def corpus(folder: Path, *texts: str) -> Path:
    """A user's corpus: what does what."""
    lines = []
    for text in texts:
        subject, verb = text.split()[:2]
        start = text.index(verb)
        span = [start, start + len(verb)]
        lines.append({"relation": "doer", "text": text, "from": span, "to": [0, len(subject)]})
    path = folder / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def close(one: Any, other: Any) -> bool:
    """Whether two answers are the same but for their numbers' last places."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return abs(one - other) <= CLOSE
    return bool(one == other)


def test_the_head_of_a_relation_is_the_one_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured again by the corpus's sentences of it alone; printed, drawn and kept."""
    monkeypatch.setattr(survey, "EXPLAINED_SENTENCES", 2)  # mechanisms are not looked at
    shipped, path = store.read_stored(DIGEST), tmp_path / "negation.jsonl"
    lines = files("service.heads").joinpath(BUNDLED_CORPUS).read_text("utf-8").splitlines()
    path.write_text("\n".join(line for line in lines if '"negation"' in line), "utf-8")

    result = run("--corpus", path, "--json", tmp_path / "a.json", "--plot", tmp_path / "a.png")

    assert result.exit_code == 0 and shipped is not None
    measured = json.loads((tmp_path / "a.json").read_bytes())
    assert measured.pop("format") == store.SURVEY_VERSION
    assert close(measured["relations"], {"negation": shipped["relations"]["negation"]})
    assert "negation" in result.output and "L3H1" in result.output
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "cache/headlight/heads-5fc648cb18e4.json").exists()


@pytest.mark.prove
def test_the_bundled_models_heads_are_as_shipped(tmp_path: Path) -> None:
    """The whole corpus, measured again."""
    result = run("--json", tmp_path / "a.json")

    assert result.exit_code == 0
    measured = json.loads((tmp_path / "a.json").read_bytes())
    assert measured.pop("format") == store.SURVEY_VERSION
    assert close(measured, store.read_stored(DIGEST))
    assert "coreference" in result.output and "no head found" in result.output


def test_a_users_corpus_is_measured_and_then_answered_by_the_service(tmp_path: Path) -> None:
    """With a threshold of the user's own; without controls no head is named."""
    path = corpus(tmp_path, "Cats sleep", "Dogs bark")

    result = run("--corpus", path, "--threshold", "delimiter sink=0.99")

    found = store.read_stored(DIGEST)
    assert result.exit_code == 0 and "mine.jsonl, 2 sentences" in result.output
    assert found is not None and found["corpus"]["name"] == "mine.jsonl"
    assert found["relations"]["doer"]["reason"] == "no controls to judge it by"
    assert "delimiter sink" not in {head["role"] for head in found["heads"]}


def test_a_cache_that_cannot_be_written_costs_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured is printed all the same."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    result = run("--corpus", corpus(tmp_path, "Cats sleep"))

    assert result.exit_code == 0 and "not saved: " in result.output


def test_ablate_prints_each_layers_heads_by_what_they_matter() -> None:
    """And says that only heads of one layer compare."""
    result = run("--ablate", DOG)

    last = next(line for line in result.output.splitlines() if "L5" in line)
    assert "H11=0.11  H10=0.051  H7=0.043" in last
    assert "Compare heads within one layer only" in result.output


def test_a_sentence_too_long_for_the_model_is_refused_by_its_line(tmp_path: Path) -> None:
    """Before anything is measured."""
    path = corpus(tmp_path, "Cats sleep", "Dogs bark" + " loudly" * 300)

    result = run("--corpus", path)

    assert result.exit_code == 2
    assert result.stderr == (
        "headlight: mine.jsonl line 2: 304 tokens; all-MiniLM-L6-v2 takes at most 256\n"
    )


REFUSED = {
    "a broken line": (("--corpus", "bad.jsonl"), "bad.jsonl line 1: "),
    "no file": (("--corpus", "none.jsonl"), "none.jsonl: No such file or directory"),
    "no such role": (
        ("--threshold", "nose=1"),
        "--threshold must be ROLE=NUMBER, the ROLE previous, next",
    ),
    "no number": (("--threshold", "next=x"), "--threshold of next must be a number from 0"),
    "too large a number": (("--threshold", "next=2"), "--threshold of next must be a number"),
    "no picture": (("--plot", "a.gif"), "--plot must end in .png or .svg, got a.gif"),
    "no model": (("--model", "nowhere"), "no folder nowhere"),
    "no model to ablate": (("--ablate", DOG, "--model", "nowhere"), "no folder nowhere"),
    "both": (("--ablate", DOG, "--plot", "a.png"), "--ablate takes no other option but --model"),
    "a long text": (("--ablate", "dog " * 300), "the text has 302 tokens"),
}


@pytest.mark.parametrize(("arguments", "line"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], line: str
) -> None:
    """It names what is wrong; nothing is printed or kept."""
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_text("{}")

    result = run(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"headlight: {line}") and result.stderr.count("\n") == 1
    assert not (tmp_path / "cache").exists()


def test_a_picture_without_matplotlib_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is measured for it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    result = run("--plot", tmp_path / "a.png")

    assert result.exit_code == 2
    assert "matplotlib is missing" in result.stderr and "extra plot" in result.stderr


# transformers 5.23.0, BertModel, eager, float32, the head's columns of W^O set to 0, mean-pooled
MOVED = {(5, 11): 0.1058, (5, 10): 0.0505, (5, 7): 0.0431, (1, 11): 1.54e-4}


@pytest.fixture(scope="module")
def solo() -> Lanes:
    """The bundled model."""
    source = locate_model(BUNDLED_MODEL)
    return Lanes(load_model(source, torch.device("cpu"), torch.float32), [])


def test_the_encoding_moves_as_far_as_in_transformers(solo: Lanes) -> None:
    """The head that leads 'it' to 'dog' moves it most, a sink of layer 1 least."""
    found = np.array(ablate_heads(solo, DOG))

    assert found.shape == (6, 12)
    assert divmod(int(found.argmax()), 12) == (5, 11)
    assert divmod(int(found.argmin()), 12) == (1, 11)
    for (layer, head), expected in MOVED.items():
        assert found[layer, head] == pytest.approx(expected, rel=0.01)


@torch.inference_mode()
def test_each_head_is_removed_by_itself(solo: Lanes) -> None:
    """Its cell holds what a pass without it, and it alone, gives."""
    model = solo.model
    (read,) = model.tokenizer([(DOG,)], model.max_tokens)
    without = Sequence(read.token_ids, gates={2: {7: 0.0}})

    def pooled(sequence: Sequence) -> torch.Tensor:
        packed = model.encoder.pack([sequence])
        rows = [packed.rows(0)]
        return model.encoder.pool(model.encoder(packed).last, rows, model.pooling)[0].double()

    alike = torch.cosine_similarity(pooled(Sequence(read.token_ids)), pooled(without), dim=0)

    assert ablate_heads(solo, DOG)[2][7] == pytest.approx(1 - alike.item(), abs=1e-7)
