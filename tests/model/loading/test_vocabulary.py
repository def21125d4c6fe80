"""model/loading/vocabulary.py: no tokenizer.json, and the same tokenizer as AutoTokenizer makes."""

import json
import struct
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertConfig, BertModel
from transformers.utils import sentencepiece_model_pb2_new as proto

from model import kernels
from model.errors import CheckpointError
from model.loading import checkpoint
from model.loading.tokenizer_settings import read_rules
from model.loading.vocabulary import find_tokenizer
from model.text.tokenizer import Tokenizer
from tests.model.loading.test_tokenizer_settings import steps

LIMIT = 512
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
OLD = {
    "special_tokens_map.json": {
        "cls_token": {"content": "[CLS]", "single_word": False, "lstrip": False, "rstrip": False},
        "mask_token": "[MASK]",
        "additional_special_tokens": ["<ent>"],
    },
    "added_tokens.json": {"<ent>": 901, "Åse": 900},
}
MAP = {"special_tokens_map.json": {"additional_special_tokens": ["<ent>", "dog"]}}
BY_ID = {
    "added_tokens_decoder": {
        "4": {"content": "<mask>", "lstrip": True, "special": True},
        "900": {"content": "NAÏVE", "single_word": True, "normalized": False},
        "800": {"content": "<ent>", "special": True},
    },
    "mask_token": "<mask>",
    "additional_special_tokens": ["<ent>"],
}
ENT = {"__type": "AddedToken", "content": "<ent>", "lstrip": True, "rstrip": False}
ENT |= {"single_word": False, "normalized": True}
SEP = {"__type": "AddedToken", "content": "[SEP]"}
ADDED = {"added_tokens.json": {"[SEP]": 3, "[MASK]": 4}}
TWICE = {"added_tokens.json": {"<ent>": 901, "Åse": 901}}  # the last one has it
TAKEN = {"added_tokens.json": {"<ent>": 2, "Åse": 3}}  # which are </s> and another's

# a family, what writes its vocabulary, tokenizer_config.json, other files
CASES: dict[str, tuple[str, Callable[..., None], dict[str, Any], dict[str, Any]]] = {
    "bert": ("bert", wordpiece, {}, {}),
    "bert, cased": ("bert", wordpiece, {"do_lower_case": False, "strip_accents": None}, {}),
    "bert, accents kept": ("bert", wordpiece, {"strip_accents": False}, {}),
    "bert, no signs": (
        "bert",
        wordpiece,
        {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizerFast"},
        {},
    ),
    "bert, older files": ("bert", wordpiece, {"do_basic_tokenize": True, "never_split": None}, OLD),
    "bert, a token more": ("bert", wordpiece, {"bos_token": "<ent>", "eos_token": ENT}, {}),
    "bert, a role of its own": ("bert", wordpiece, {"ent_token": "<ent>"}, {}),
    "bert, by name": ("bert", wordpiece, {"extra_special_tokens": {"ent_token": "<ent>"}}, {}),
    "bert, special ones split": ("bert", wordpiece, {"split_special_tokens": True}, {}),
    "bert, an object in older files": ("bert", wordpiece, {"sep_token": SEP}, OLD | ADDED),
    "bert, an id twice": ("bert", wordpiece, {}, TWICE),
    "ernie": ("ernie", wordpiece, {}, {}),
    "electra": ("electra", wordpiece, {"tokenizer_class": "ElectraTokenizer"}, {}),
    "distilbert": ("distilbert", wordpiece, {"tokenizer_class": "DistilBertTokenizer"}, {}),
    "nomic": ("nomic_bert", wordpiece, {"cls_token": "[CLS]", "pad_token": "[PAD]"}, {}),
    "mpnet": ("mpnet", lambda *a: wordpiece(*a, MPNET), {"tokenizer_class": "MPNetTokenizer"}, {}),
    "mpnet, cased": ("mpnet", lambda *a: wordpiece(*a, MPNET), {"do_lower_case": False}, {}),
    "roberta": ("roberta", byte_level, {}, {}),
    "roberta, prefixed": ("roberta", byte_level, {"add_prefix_space": True}, {}),
    "roberta, untrimmed": ("roberta", byte_level, {"trim_offsets": False}, {}),
    "roberta, by id": ("roberta", byte_level, BY_ID, {}),
    "roberta's bytes in a bert": ("bert", byte_level, {"tokenizer_class": "RobertaTokenizer"}, {}),
    "qwen3": ("qwen3", byte_level, {"eos_token": "</s>", "pad_token": "<pad>"}, {}),
    "xlm-roberta": ("xlm-roberta", XLM, {}, {}),
    "xlm-roberta, bare": ("xlm-roberta", XLM, {"add_prefix_space": False}, {}),
    "xlm-roberta, by id": ("xlm-roberta", XLM, BY_ID, {}),
    "xlm-roberta, older files": ("xlm-roberta", XLM, {"cls_token": "<s>"}, MAP),
    "xlm-roberta, none": ("xlm-roberta", XLM, {"additional_special_tokens": []}, {}),
    "xlm-roberta, an id of another": ("xlm-roberta", XLM, {}, TAKEN),
    "gte": ("gte", XLM, {}, {}),
    "gte, of English": ("gte", wordpiece, {"tokenizer_class": "BertTokenizer"}, {}),
    "new": ("new", XLM, {"tokenizer_class": "XLMRobertaTokenizerFast"}, {}),
    "new, of English": ("new", wordpiece, {"tokenizer_class": "BertTokenizer"}, {}),
    "camembert": ("camembert", XLM, {}, {}),
    "camembert, a mask": (
        "camembert",
        unigram("sentencepiece.bpe.model", FAIRSEQ),
        {"mask_token": {**ENT, "content": "<mask>", "normalized": False}},
        {},
    ),
    "deberta": ("deberta-v2", DEBERTA, {}, {}),
    "deberta, in lower case": (
        "deberta-v2",
        DEBERTA,
        {"do_lower_case": True, "tokenizer_class": "DebertaV2Tokenizer"},
        {},
    ),
    "deberta, punctuation split": (
        "deberta-v2",
        DEBERTA,
        {"split_by_punct": True, "add_prefix_space": False, "sp_model_kwargs": {}},
        {},
    ),
    "deberta, older files": ("deberta-v2", DEBERTA, {"vocab_type": "spm"}, OLD),
    "albert": ("albert", unigram("spiece.model", OF_ALBERT), {}, {}),
    "albert's pieces in a bert": (
        "bert",
        unigram("spiece.model", OF_ALBERT),
        {"tokenizer_class": "AlbertTokenizer"},
        {},
    ),
    "albert's, accents kept": (
        "bert",
        unigram("spiece.model", OF_ALBERT, precompiled_charsmap=b""),
        {"tokenizer_class": "AlbertTokenizer", "keep_accents": True, "do_lower_case": False},
        {},
    ),
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, texts: list[str]) -> Write:
    """A folder of a family, with a vocabulary of the texts."""

    def folder(
        family: str, vocabulary: Callable[..., None], own: dict[str, Any], files: dict[str, Any]
    ) -> Path:
        vocabulary(tmp_path, [*texts[:60], *TRICKY])
        every = {"config.json": {"model_type": family}, **files}
        every |= {"tokenizer_config.json": own} if own else {}
        for name, content in every.items():
            (tmp_path / name).write_text(json.dumps(content), "utf-8")
        return tmp_path

    return folder


def by_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """AutoTokenizer's reading of a folder."""
    # the package sentencepiece is asked for, and not used: protobuf reads the model
    module = import_module("transformers.convert_slow_tokenizer")  # a function has its name too
    monkeypatch.setattr(module, "requires_backends", lambda *wanted: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a vocabulary by its path
        return AutoTokenizer.from_pretrained(folder)


def ours(folder: Path) -> Library:
    """What is made of a folder's vocabulary."""
    config = json.loads((folder / "config.json").read_text())
    library = find_tokenizer(folder, read_rules(folder, config["model_type"], config)).tokenizer
    assert isinstance(library, Library)
    return library


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_vocabulary_is_converted_as_transformers_does(
    case: tuple[Any, ...], write: Write, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of the tokenizer is the library's own, and so are ids, types and offsets."""
    folder = write(*case)

    made, peer = ours(folder), by_transformers(folder, monkeypatch)

    assert json.loads(made.to_str()) == json.loads(peer.backend_tokenizer.to_str())
    singles: list[Any] = [(text,) for text in [*texts[:40], *TRICKY]]
    pairs = zip(TRICKY[:-1], [*TRICKY[3:-1], *TRICKY[:3]], strict=True)
    every = [*singles, *pairs]
    for text, found in zip(every, Tokenizer(made)(every, 4096), strict=True):
        same = peer(*text, return_offsets_mapping=True, return_token_type_ids=True)
        assert found.token_ids == same["input_ids"]
        assert found.types == same["token_type_ids"]
        assert found.offsets == same["offset_mapping"]


def test_characters_reach_words_of_their_own(write: Write) -> None:
    """Not unknown tokens alone were compared: a ligature is two letters, Chinese has pieces."""
    tokens = ours(write(*CASES["xlm-roberta"])).encode("ﬁn 你好世界 Café").tokens

    assert "f" in "".join(tokens[:3]) and "<unk>" not in tokens


def test_a_checkpoint_loads_without_tokenizer_json(write: Write) -> None:
    """The model is the one with tokenizer.json: the same ids, vectors and longest text."""
    folder = write("bert", wordpiece, {"model_max_length": 13}, {})
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    sizes = {"vocab_size": len(lines), "hidden_size": 15, "num_attention_heads": 3}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 23, "max_position_embeddings": 17}
    BertModel(BertConfig(**sizes)).save_pretrained(folder)

    made, digest = load(folder), load(folder).digest
    AutoTokenizer.from_pretrained(folder).backend_tokenizer.save(str(folder / "tokenizer.json"))
    stored = load(folder)

    assert made.max_tokens == stored.max_tokens == 13
    assert made.tokenizer([("A dog ate",)], 13) == stored.tokenizer([("A dog ate",)], 13)
    assert made.digest == digest != stored.digest  # other bytes were read


def test_a_checkpoint_loads_with_the_vocabulary_of_an_albert(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and not its tokenizer alone; it has no token types, as in transformers."""
    folder = write(*CASES["albert's pieces in a bert"])
    peer = by_transformers(folder, monkeypatch)
    sizes = {"vocab_size": len(peer), "hidden_size": 15, "num_attention_heads": 3}
    sizes |= {"num_hidden_layers": 1, "intermediate_size": 23, "max_position_embeddings": 37}
    BertModel(BertConfig(**sizes)).save_pretrained(folder)

    (found,) = load(folder).tokenizer([("A dog ate", "the food")], 37)

    expected = peer("A dog ate", "the food", return_token_type_ids=True)["input_ids"]
    assert found.token_ids == expected
    assert set(found.types) == {0} and "token_type_ids" not in peer("a", "b")


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("albert")])
def test_an_alberts_tokenizer_json_is_read_as_transformers_reads_it(
    case: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step, with SentencePiece's table or without; and what it makes of texts and pairs."""
    folder = write(*CASES[case])
    by_transformers(folder, monkeypatch).backend_tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    peer = by_transformers(folder, monkeypatch)
    rules = read_rules(folder, config["model_type"], config)
    made = Tokenizer(folder / "tokenizer.json", rules)

    assert steps(made._library) == steps(peer.backend_tokenizer)
    pairs = zip(TRICKY[:-1], [*TRICKY[3:-1], *TRICKY[:3]], strict=True)
    every = [*((text,) for text in TRICKY), *pairs]
    for text, found in zip(every, made(every, 4096), strict=True):
        assert found.token_ids == peer(*text)["input_ids"]


def test_a_vocabulary_without_its_unknown_token_is_refused(write: Write) -> None:
    """When it is loaded, and not at the first text with a word that it lacks."""
    with pytest.raises(CheckpointError, match=r"unk_token '\[NONE\]' is not in the vocabulary"):
        ours(write("bert", wordpiece, {"unk_token": "[NONE]"}, {}))


@pytest.mark.parametrize(
    "change",
    [
        ("vocab.txt", None),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer_config.json", {"do_lower_case": True, "split_special_tokens": True}),
        ("special_tokens_map.json", {"mask_token": "[PAD]"}),
    ],
    ids=["the vocabulary", "a switch", "special tokens as text", "a special token"],
)
def test_the_digest_follows_what_was_read(change: tuple[str, Any], write: Write) -> None:
    """The bytes of the vocabulary, and the choices of the other files."""
    folder = write("bert", wordpiece, {"do_lower_case": True}, {})
    lines = len((folder / "vocab.txt").read_text("utf-8").splitlines())
    sizes = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=lines + 1, intermediate_size=23, **sizes)).save_pretrained(
        folder
    )
    before = load(folder).digest

    name, content = change
    path = folder / name
    if content is None:
        path.write_text(path.read_text("utf-8") + "unheard\n", "utf-8")
    else:
        path.write_text(json.dumps(content))

    assert load(folder).digest != before


def test_how_a_file_is_written_is_not_in_the_digest(write: Write) -> None:
    """Spaces, and keys that decide nothing."""
    folder = write("bert", wordpiece, {"do_lower_case": True}, {})
    lines = len((folder / "vocab.txt").read_text("utf-8").splitlines())
    sizes = {"hidden_size": 15, "num_attention_heads": 3, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=lines, intermediate_size=23, **sizes)).save_pretrained(folder)
    before = load(folder).digest

    (folder / "tokenizer_config.json").write_text('{"never_split": null,  "do_lower_case": true}')

    assert load(folder).digest == before


OWN = {"tokenizer_class": "PreTrainedTokenizerFast"}
CODE = {"auto_map": {"AutoTokenizer": ["tokenization.Own", None]}}
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "modernbert": (("modernbert", byte_level, {}, {}), "of 'modernbert' is not made here"),
    "a generic class": (("bert", wordpiece, OWN, {}), "a PreTrainedTokenizerFast of 'bert' is not"),
    "another's vocabulary": (("roberta", wordpiece, {}, {}), "lacks tokenizer.json or vocab.json"),
    "code": (("bert", wordpiece, CODE, {}), "not supported: auto_map"),
    "no special ones": (("roberta", byte_level, {"add_bos_token": False}, {}), ": add_bos_token"),
    "a switch": (("bert", wordpiece, {"do_lower_case": "yes"}, {}), "do_lower_case is neither"),
    "a null": (("bert", wordpiece, {"cls_token": None}, {}), "cls_token is null, and"),
    "an object": (
        ("bert", wordpiece, {"cls_token": {"content": "a"}}, {}),
        "cls_token is no token",
    ),
    "bpe": (
        ("xlm-roberta", unigram("sentencepiece.bpe.model", FAIRSEQ, model_type=2), {}, {}),
        "a SentencePiece model with model_type 2 is not converted",
    ),
    "bytes": (
        ("xlm-roberta", unigram("sentencepiece.bpe.model", FAIRSEQ, byte_fallback=True), {}, {}),
        "byte_fallback 1",
    ),
    "no dummy": (
        ("camembert", unigram("sentencepiece.bpe.model", FAIRSEQ, add_dummy_prefix=False), {}, {}),
        "add_dummy_prefix 0",
    ),
    "other first pieces": (
        ("xlm-roberta", unigram("sentencepiece.bpe.model", OF_ALBERT), {}, {}),
        "begins with",
    ),
}


@pytest.mark.parametrize(("case", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_converted_is_refused(
    case: tuple[Any, ...], reason: str, write: Write
) -> None:
    """By name, in one line."""
    with pytest.raises(CheckpointError) as refusal:
        ours(write(*case))

    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


BROKEN = {
    "nothing": b"",
    "half a file": lambda whole: whole[:-3],
    "a text": b"this is no protobuf",
    "a number without end": b"\x0a" + b"\xff" * 11,
    "a length beyond the file": b"\x0a\xff\xff\xff\xff\x0f",
    "a group": b"\x0b\x0c",
    "a piece that is no text": b"\x0a\x03\x0a\x01\xff",
    "a score that is none": b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f",
    "a piece that is a number": b"\x08\x01",
    "a git pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5069051\n",
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_sentencepiece_model_is_refused(content: Any, write: Write) -> None:
    """Whatever its bytes are, in one line that names the file."""
    folder = write(*CASES["xlm-roberta"])
    path = folder / "sentencepiece.bpe.model"
    path.write_bytes(content if isinstance(content, bytes) else content(path.read_bytes()))

    with pytest.raises(CheckpointError, match="^sentencepiece.bpe.model is not a SentencePiece"):
        ours(folder)


def test_a_folder_that_cannot_be_written_to_is_enough(write: Write) -> None:
    """Nothing is put there."""
    folder = write(*CASES["xlm-roberta"])
    before = {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}

    ours(folder)

    assert before == {path: path.stat().st_mtime_ns for path in [folder, *folder.iterdir()]}


def load(folder: Path) -> checkpoint.Model:
    """A folder as a replica on a CPU loads it."""
    return checkpoint.load(folder, torch.device("cpu"), torch.float32, kernels.PLAIN)
