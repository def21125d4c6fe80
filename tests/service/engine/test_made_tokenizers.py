"""A tokenizer.json is made of a vocabulary by transformers, and read as the library reads it."""

import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoTokenizer, BertConfig, BertModel

from model import kernels
from model.errors import CheckpointError
from model.families import read_config_and_family
from model.loading import checkpoint
from model.loading.agreement import read_tokenizer
from model.loading.modules import read_raw_config
from model.text.tokenizer import Tokenizer
from service.cli import main
from service.files import tokenizers
from service.files import transformers_process as transformers
from service.files.weights import ModelNotFound, locate_model

TRICKY = [
    "Café cafe\u0301 NAÏVE Åse",
    "\U0001f469\u200d\U0001f4bb wrote \U0001f600\U0001f600 code",
    "漢字とかな 한국어, 你好世界",
    "  two  spaces\tand\nlines ",
    "a\u0000b\u0007c \u200b\ufeffd \ufffd",  # control and format characters
    "ﬁn ½ ``quoted'' عربي",
    "[MASK] in <mask> a [SEP] text </s> NOTUSED <s>NOTUSED <ent>",
    "",
]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MPNET = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def wordpiece(folder: Path, texts: list[str], special: list[str] = BERT) -> None:
    """Write a vocab.txt, with words in upper case and with accents."""
    library = Library(models.WordPiece(unk_token=special[-4] if special is BERT else "[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    library.train_from_iterator([*texts, *(text.lower() for text in texts)], trainer)
    library.model.save(str(folder))


def byte_level(folder: Path, texts: list[str]) -> None:
    """Write vocab.json and merges.txt."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=ROBERTA,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    library.model.save(str(folder))


def charsmap(rules: dict[bytes, str]) -> bytes:
    """Rules of normalisation as SentencePiece compiles them: a double array, and its texts."""
    nodes: list[dict[int, int]] = [{}]
    leaves: dict[int, int] = {}
    texts = b""
    for key, value in rules.items():
        node = 0
        for byte in key:
            if byte not in nodes[node]:
                nodes.append({})
                nodes[node][byte] = len(nodes) - 1
            node = nodes[node][byte]
        leaves[node] = len(texts)
        texts += value.encode() + b"\0"
    units = [0] * 256 * (len(nodes) + 1)

    def unit(at: int, node: int, label: int) -> None:
        base = 256 * (node + 1)
        units[at] = label | (node in leaves) << 8 | (at ^ base) << 10
        if node in leaves:
            units[base] = leaves[node] | 1 << 31
        for byte, child in nodes[node].items():
            unit(base ^ byte, child, byte)

    unit(0, 0, 0)
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


RULES = {"ﬁ".encode(): "fi", "½".encode(): "1/2", b"\t": " ", b"\n": " "}


def unigram(name: str, first: list[tuple[str, int]], **rule: Any) -> Callable[..., None]:
    """A writer of a SentencePiece model, through the protobuf of transformers."""

    def write(folder: Path, texts: list[str]) -> None:
        library = Library(models.Unigram())
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
        library.train_from_iterator([*texts, *(text.lower() for text in texts)], trainer)
        model = proto.ModelProto()
        for text, type in first:
            model.pieces.add(piece=text, score=0.0, type=type)
        for text, score in json.loads(library.to_str())["model"]["vocab"][1:]:
            model.pieces.add(piece=text, score=score)
        model.trainer_spec.model_type = 1
        model.trainer_spec.unk_id = next(i for i, (_, type) in enumerate(first) if type == 2)
        model.trainer_spec.input.append("not read")
        model.normalizer_spec.name = "nmt_nfkc"
        model.normalizer_spec.precompiled_charsmap = charsmap(RULES)
        for key, value in rule.items():
            spec = model.trainer_spec if hasattr(model.trainer_spec, key) else model.normalizer_spec
            setattr(spec, key, value)
        (folder / name).write_bytes(model.SerializeToString())

    return write


FAIRSEQ = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
OF_ALBERT = [("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("[MASK]", 4)]
OF_DEBERTA = [("[PAD]", 3), ("[CLS]", 3), ("[SEP]", 3), ("[UNK]", 2)]
DEBERTA = unigram("spm.model", OF_DEBERTA)
XLM = unigram("sentencepiece.bpe.model", FAIRSEQ)
Vocabulary = Callable[[Path, list[str]], None]
# a family, what writes its vocabulary, tokenizer_config.json
CASES: dict[str, tuple[str, Vocabulary, dict[str, Any]]] = {
    "an old bert": ("bert", wordpiece, {}),
    "a cased bert": ("bert", wordpiece, {"do_lower_case": False}),
    "a mpnet": ("mpnet", lambda *a: wordpiece(*a, MPNET), {"tokenizer_class": "MPNetTokenizer"}),
    "a roberta": ("roberta", byte_level, {"add_prefix_space": True}),
    "a xlm-roberta": ("xlm-roberta", XLM, {}),
    "an albert": ("albert", unigram("spiece.model", OF_ALBERT), {}),
    "a deberta": ("deberta-v2", DEBERTA, {"split_by_punct": True}),
}
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of many scripts."""
    path = Path(__file__).parents[2] / "model" / "texts.txt"
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def write(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> Write:
    """A folder of a family, with a vocabulary of the texts; the user's cache is another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def folder(family: str, vocabulary: Vocabulary, own: dict[str, Any]) -> Path:
        made = tmp_path / "old"
        made.mkdir()
        vocabulary(made, [*texts[:60], *TRICKY])
        AutoConfig.for_model(family, **SIZES | MORE.get(family, {})).save_pretrained(made)
        if own:
            (made / "tokenizer_config.json").write_text(json.dumps(own))
        return made

    return folder


SIZES = {"hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 23, "max_position_embeddings": 37, "vocab_size": 999}
MORE: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 5},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    | {"position_biased_input": False, "type_vocab_size": 0},
}


def read(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, as a start reads it."""
    raw = read_raw_config(folder)
    return read_tokenizer(folder, read_config_and_family(raw)[1], raw)[0]


def convert(folder: Path) -> Result:
    """Convert a folder into "new" next to it."""
    return CliRunner().invoke(main, ["convert", str(folder), str(folder.parent / "new")])


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the library here: a process of its own takes seconds to import it."""

    def run(folder: Path, target: Path, asked: dict[str, Any]) -> list[Any]:
        return transformers.make_tokenizer(str(folder), str(target), **asked)

    monkeypatch.setattr(tokenizers, "_run_library", run)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_vocabulary_becomes_the_tokenizer_that_transformers_has(
    case: tuple[Any, ...], write: Write, texts: list[str]
) -> None:
    """Every step is the library's own; ids, types and offsets of other texts are, too."""
    folder = write(*case)

    result = convert(folder)

    assert result.exit_code == 0, result.output
    assert "100 texts read as it does" in result.stderr
    made, peer = folder.parent / "new", AutoTokenizer.from_pretrained(folder)
    stored = json.loads((made / "tokenizer.json").read_text("utf-8"))
    assert stored == json.loads(peer.backend_tokenizer.to_str())
    ours = read(made)
    for text in [*texts[40:60], *TRICKY]:
        (found,) = ours([(text,)], 4096)
        theirs = peer(text, return_offsets_mapping=True)
        assert (found.token_ids, found.offsets) == (theirs["input_ids"], theirs["offset_mapping"])
    (pair,) = ours([("A dog", "ate")], 4096)
    assert pair.types == peer("A dog", "ate").get("token_type_ids", [0] * len(pair.types))


@pytest.mark.prove
def test_a_folder_without_tokenizer_json_is_served_from_the_cache(
    write: Write, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """It is made once, of a folder that stays as it is; a changed vocabulary is made anew."""
    folder = write("bert", wordpiece, {"model_max_length": 13})
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    BertModel(BertConfig(**SIZES | {"vocab_size": len(lines) + 1})).save_pretrained(folder)
    before = sorted(folder.iterdir())

    first = locate_model(str(folder))
    with monkeypatch.context() as still:
        still.setattr(subprocess, "run", lambda *step, **how: pytest.fail("made again"))
        assert locate_model(str(folder)) == first
    model = checkpoint.load_checkpoint(
        first.folder, torch.device("cpu"), torch.float32, kernels.PLAIN
    )

    assert (first.name, model.max_tokens) == ("old", 13)
    assert sorted(folder.iterdir()) == before
    assert (
        model.tokenizer([("A dog",)], 13)[0].token_ids
        == AutoTokenizer.from_pretrained(folder)("A dog")["input_ids"]
    )
    (folder / "vocab.txt").write_text("\n".join([*lines, "unheard"]), "utf-8")
    request.getfixturevalue("in_process")
    assert locate_model(str(folder)).folder != first.folder


def test_without_the_extra_one_line_names_the_command(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To serve it, and to convert it."""
    folder = write("bert", wordpiece, {})
    monkeypatch.setattr(tokenizers, "is_possible", lambda: False)

    with pytest.raises(ModelNotFound, match=f"headlight convert {folder} OUT"):
        locate_model(str(folder))
    assert "pip install 'headlight-serve[convert]'" in convert(folder).stderr
    with pytest.raises(CheckpointError, match="lacks tokenizer.json: `headlight convert"):
        checkpoint.read_sizes(folder)


def test_a_class_without_a_fast_form_is_refused_by_name(write: Write) -> None:
    """MeCab's, of Japanese BERTs; nothing is left behind."""
    folder = write("bert", wordpiece, {"tokenizer_class": "BertJapaneseTokenizer"})

    result = convert(folder)

    assert (result.exit_code, (folder.parent / "new").exists()) == (1, False)
    assert "'BertJapaneseTokenizer' is not supported" in result.stderr.splitlines()[-1]


def test_a_broken_vocabulary_is_refused_in_one_line(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever transformers makes of it, as the process tells that has asked it."""
    folder = write("xlm-roberta", XLM, {})
    (folder / "sentencepiece.bpe.model").write_bytes(b"this is no protobuf")
    with pytest.raises(SystemExit) as refusal:
        transformers.make_tokenizer(str(folder), str(folder / "tokenizer.json"), {}, [])
    said = str(refusal.value)
    ends = folder.parent / "ends.py"  # as that process does, which takes seconds to come so far
    ends.write_text(f"import sys; print('noise', file=sys.stderr); raise SystemExit({said!r})")
    monkeypatch.setattr(transformers, "__file__", str(ends))

    result = convert(folder)

    assert result.exit_code == 1 and "\n" not in said
    last = result.stderr.splitlines()[-1]
    assert last == f"headlight: tokenizer.json is not made of {folder}: {said}"


@pytest.mark.usefixtures("in_process")
def test_a_contradicted_tokenizer_json_is_made_anew(write: Write) -> None:
    """What tokenizer_config.json asks for is written into it."""
    folder = write("bert", wordpiece, {"do_lower_case": True})
    assert convert(folder).exit_code == 0
    cased = folder.parent / "new"
    (cased / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(CheckpointError, match="do_lower_case is false, and the file does otherwis"):
        read(cased)
    shutil.move(cased, folder.parent / "cased")

    assert convert(folder.parent / "cased").exit_code == 0
    (found,) = read(folder.parent / "new")([("A",)], 9)
    assert found.tokens == ["[CLS]", "A", "[SEP]"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("family", "vocabulary", "own", "told"),
    [
        ("bert", XLM, {}, "makes WordPiece of it, and its files hold BPE or Unigram"),
        ("xlm-roberta", wordpiece, {}, "makes Unigram of it, and its files hold WordPiece"),
        ("bert", byte_level, {}, "makes WordPiece of it, and its files hold byte-level BPE"),
        ("bert", XLM, {"tokenizer_class": "RobertaTokenizer"}, "makes byte-level BPE of it"),
    ],
    ids=["pieces for words", "words for pieces", "bytes for words", "a class of bytes"],
)
def test_a_tokenizer_keeps_its_kind(
    write: Write, family: str, vocabulary: Vocabulary, own: dict[str, Any], told: str
) -> None:
    """Of a class that reads other files transformers makes one of a few words, without a sign."""
    result = convert(write(family, vocabulary, own))

    assert result.exit_code == 1
    assert f"{told}" in result.stderr and "name the class in tokenizer_config.json" in result.stderr


@pytest.mark.usefixtures("in_process")
def test_a_tokenizer_json_of_another_kind_is_left_as_it_is(write: Write) -> None:
    """Older copies of multilingual models name no class, and their family's reads other files."""
    folder = write("deberta-v2", DEBERTA, {})
    assert convert(folder).exit_code == 0
    older = folder.parent / "older"
    shutil.move(folder.parent / "new", older)
    AutoConfig.for_model("bert", **SIZES).save_pretrained(older)

    assert "needs no other tokenizer.json" in convert(older).stderr
    dog, cat = read(older)([("the dog barks",), ("the cat sleeps",)], 64)
    file = Library.from_file(str(older / "tokenizer.json"))
    assert dog.token_ids == file.encode("the dog barks").ids != cat.token_ids

    (older / "tokenizer_config.json").write_text('{"mask_token": "hungry"}')
    assert "makes WordPiece of it, and its files hold Unigram" in convert(older).stderr


@pytest.mark.usefixtures("in_process")
def test_no_advice_names_the_folder_of_an_attempt(write: Write) -> None:
    """It is gone when the message is read."""
    folder = write("bert", wordpiece, {})
    assert convert(folder).exit_code == 0
    other = folder.parent / "other"
    shutil.move(folder.parent / "new", other)
    (other / "tokenizer_config.json").write_text('{"sep_token": null}')

    last = convert(other).stderr.splitlines()[-1]

    assert "that transformers makes is not read: tokenizer_config.json contradicts" in last
    assert ".new." not in last and "OUT" not in last


def test_a_model_of_pickles_is_sent_to_convert_by_its_own_name(write: Write) -> None:
    """Not by that of a folder in the cache, where its tokenizer.json would be made in vain."""
    folder = write("bert", wordpiece, {})
    torch.save({"a": torch.ones(2)}, folder / "pytorch_model.bin")

    found = locate_model(str(folder)).folder

    assert found == folder and not (folder.parent / "cache").exists()
    with pytest.raises(CheckpointError, match=f"headlight convert {folder} OUT"):
        checkpoint.read_sizes(found)


@pytest.mark.usefixtures("in_process")
def test_a_file_that_reads_otherwise_than_the_library_is_not_kept(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is compared before it is used."""
    run = tokenizers._run_library

    def wrong(*asked: Any) -> list[Any]:
        ids, types, offsets = (found := run(*asked))[3]
        found[3] = [[*ids[:-1], ids[-1] + 1], types, offsets]
        return found

    monkeypatch.setattr(tokenizers, "_run_library", wrong)
    result = convert(write("bert", wordpiece, {}))

    assert result.exit_code == 1 and "otherwise than the tokenizer.json" in result.stderr
