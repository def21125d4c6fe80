"""model/loading/tokenizer_settings.py: a tokenizer as transformers makes it of a folder's files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Library
from transformers import AutoTokenizer

from model.errors import CheckpointError
from model.loading.tokenizer_settings import read_rules
from model.text.tokenizer import Tokenizer

TEXTS = [
    "Why is the Dog here?",
    "A caf\u00e9 in M\u00e9xico \u4f60\u597d ate",
    "It was [SEP] hungry </s> [X] <mask>  it",
    "don't stop stra\u00dfe 12,5 \ufb01n \u0130",
]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ALBERT = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
MARKED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
PAIRS = [*zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
NAMES = ["input_ids", "token_type_ids", "attention_mask"]
X = {"content": "[X]", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}


def wordpiece(special: list[str] = BERT) -> Library:
    """A BERT's whose own steps are not those that its class makes."""
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=99, special_tokens=special, show_progress=False)
    library.train_from_iterator([*TEXTS, *map(str.lower, TEXTS)], trainer)
    library.normalizer = normalizers.NFC()
    return library


def byte_level() -> Library:
    """A RoBERTa's, that begins with a space where its class does not."""
    library = Library(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=MARKED, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    return library


def qwen2() -> Library:
    """A Qwen2's, of other words than its class makes; it ends a text by itself."""
    library = byte_level()
    library.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    library.add_tokens([AddedToken("<think>", normalized=False)])
    end = library.token_to_id("<|endoftext|>")
    library.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False, use_regex=False),
            processors.TemplateProcessing(
                single="$A <|endoftext|>",
                pair="$A <|endoftext|> $B:1 <|endoftext|>:1",
                special_tokens=[("<|endoftext|>", end)],
            ),
        ]
    )
    return library


def gemma() -> Library:
    """A Gemma's, of other pieces than its class makes; bytes for what it lacks."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=marks, show_progress=False)
    library.train_from_iterator(TEXTS, trainer)
    stored = json.loads(library.to_str())
    words = stored["model"]["vocab"]
    words |= {byte: len(words) + place for place, byte in enumerate(bytes_)}
    library = Library.from_str(json.dumps(stored))
    library.normalizer = normalizers.NFC()
    library.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    return library


def unigram(special: list[str] = MARKED) -> Library:
    """One of SentencePiece, with other steps than its class makes."""
    library = Library(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    unknown = "[UNK]" if "[UNK]" in special else "<unk>"
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=special, unk_token=unknown, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    return library


KINDS: dict[str, Callable[[], Library]] = {
    **dict.fromkeys(("bert", "ernie", "electra", "distilbert", "nomic_bert"), wordpiece),
    "mpnet": lambda: wordpiece([*MARKED, "[UNK]"]),
    **dict.fromkeys(("roberta", "modernbert"), byte_level),
    **dict.fromkeys(("xlm-roberta", "camembert", "gte", "jina_embeddings_v3"), unigram),
    "deberta-v2": lambda: unigram(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]),
    "albert": lambda: unigram(ALBERT),
    "qwen3": qwen2,
    "gemma3_text": gemma,
}
FRAMED = {"bert": ("[CLS]", "[SEP]"), "modernbert": ("<s>", "</s>")}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A folder of a family's tokenizer, and what is said of it."""

    def save(family: str, said: dict[str, Any] | None, **files: Any) -> Path:
        library = KINDS[family]()
        if family in FRAMED:
            first, last = FRAMED[family]
            library.post_processor = processors.TemplateProcessing(
                single=f"{first} $A {last}",
                pair=f"{first} $A {last} $B:1 {last}:1",
                special_tokens=[(name, library.token_to_id(name)) for name in (first, last)],
            )
        stored = json.loads(library.to_str())
        stored["truncation"] = files.pop("truncation", None)
        (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
        for name, content in ({"tokenizer_config": said} | files).items():
            if content is not None:
                (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return save


def read(folder: Path) -> Tokenizer:
    """The tokenizer as we read it."""
    config = json.loads((folder / "config.json").read_text())
    rules = read_rules(folder, config["model_type"], config)
    return Tokenizer(folder / "tokenizer.json", rules)


def steps(library: Library) -> dict[str, Any]:
    """All of a tokenizer but what is set for each call, and how a file spells nothing."""
    told: dict[str, Any] = json.loads(library.to_str())
    model = told.pop("model")
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):  # scores lose a bit on their way through a file
        model["vocab"] = [(word, round(score, 6)) for word, score in vocabulary]
    model = {key: value or None for key, value in model.items()}
    return {**told, "model": model, "truncation": None, "padding": None}


LEFT = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
CASES: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = [
    *((family, None, {}) for family in KINDS),
    *((family, {"tokenizer_class": "PreTrainedTokenizerFast"}, {}) for family in KINDS),
    ("bert", {"do_lower_case": False}, {}),
    ("bert", {"strip_accents": False}, {}),
    ("bert", {"tokenize_chinese_chars": False, "do_lower_case": False, "strip_accents": True}, {}),
    ("bert", {"truncation_side": "left"}, {}),
    ("bert", {"truncation_side": "right"}, {"truncation": LEFT}),
    ("bert", {}, {"truncation": LEFT}),
    ("bert", {"model_input_names": ["input_ids", "attention_mask"]}, {}),
    ("bert", {"model_input_names": NAMES, "tokenizer_class": "TokenizersBackend"}, {}),
    ("bert", {"tokenizer_class": "DistilBertTokenizerFast"}, {}),
    ("distilbert", {"tokenizer_class": "DistilBertTokenizer"}, {}),
    ("electra", {"tokenizer_class": "ElectraTokenizerFast", "mask_token": "[X]"}, {}),
    ("bert", {"cls_token": "[MASK]", "sep_token": "[X]", "unk_token": "[PAD]"}, {}),
    ("bert", {"pad_token": {"__type": "AddedToken", **X}, "padding_side": "left"}, {}),
    ("bert", {"extra_special_tokens": ["hungry"], "split_special_tokens": True}, {}),
    ("bert", {"extra_special_tokens": {"a_token": "dog"}, "other_token": "ate"}, {}),
    ("bert", {"additional_special_tokens": ["hungry"]}, {}),
    ("bert", {"added_tokens_decoder": {"2": X | {"content": "[CLS]"}, "99": X}}, {}),
    ("bert", {"tokenizer_class": "TokenizersBackend", "added_tokens_decoder": {"99": X}}, {}),
    ("bert", {"cls_token": "[MASK]"}, {"special_tokens_map": {"cls_token": X}}),
    ("bert", {}, {"added_tokens": {"hungry": 99, "[X]": 100}}),
    ("bert", {}, {"added_tokens": {"hungry": 99, "[X]": 99}}),
    ("bert", {}, {"added_tokens": {"hungry": 3, "[X]": 30}}),
    ("xlm-roberta", {}, {"added_tokens": {"<mask>": 1, "[X]": 1, "hungry": 2}}),
    ("bert", {"add_bos_token": True, "clean_up_tokenization_spaces": True, "never_split": 1}, {}),
    ("modernbert", {"tokenizer_class": "BertTokenizer", "add_prefix_space": False}, {}),
    ("roberta", {"add_prefix_space": True, "trim_offsets": False}, {}),
    ("roberta", {"cls_token": "[X]", "sep_token": "<mask>"}, {}),
    ("xlm-roberta", {"add_prefix_space": False, "bos_token": "[X]", "cls_token": "the"}, {}),
    ("camembert", {"additional_special_tokens": ["[X]"], "unk_token": "<pad>"}, {}),
    ("camembert", {"extra_special_tokens": []}, {}),
    ("deberta-v2", {"do_lower_case": True, "split_by_punct": True}, {}),
    ("deberta-v2", {"add_prefix_space": False, "cls_token": "[X]", "sep_token": "the"}, {}),
    ("deberta-v2", {"tokenizer_class": "DebertaV2TokenizerFast", "unk_token": "[UNK]"}, {}),
    ("albert", {"do_lower_case": False, "keep_accents": True, "add_prefix_space": False}, {}),
    ("albert", {"cls_token": "[MASK]", "model_input_names": NAMES}, {}),
    (
        "qwen3",
        {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "padding_side": "left"},
        {},
    ),
    ("qwen3", {"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": True}, {}),
    ("qwen3", {"add_bos_token": False, "bos_token": None, "errors": "replace"}, {}),
    ("gemma3_text", {"add_bos_token": True, "add_eos_token": True, "padding_side": "left"}, {}),
    ("gemma3_text", {"tokenizer_class": "GemmaTokenizerFast", "eos_token": "[X]"}, {}),
    ("mpnet", {"do_lower_case": False, "bos_token": "[X]", "sep_token": "<mask>"}, {}),
]


@pytest.mark.parametrize(("family", "said", "files"), CASES, ids=str)
def test_a_tokenizer_is_made_as_transformers_makes_it(
    saved: Callable[..., Path], family: str, said: dict[str, Any] | None, files: dict[str, Any]
) -> None:
    """Step by step, and what it makes of pairs: ids, types, offsets, and where they are cut."""
    folder = saved(family, said, **files)
    peer, ours = AutoTokenizer.from_pretrained(folder), read(folder)

    assert steps(ours._library) == steps(peer.backend_tokenizer)
    for pair, found in zip(PAIRS, ours(PAIRS, 512), strict=True):
        theirs = peer(*pair, return_offsets_mapping=True)
        assert found.token_ids == theirs["input_ids"]
        assert found.offsets == theirs["offset_mapping"]
        assert found.types == theirs.get("token_type_ids", [0] * len(found.types))
    for pair, found in zip(PAIRS, ours(PAIRS, 11, "own"), strict=True):
        theirs = peer(*pair, truncation="longest_first", max_length=11)
        assert found.token_ids == theirs["input_ids"]
        assert found.types == theirs.get("token_type_ids", [0] * len(found.types))


def test_a_side_that_a_request_names_stays_that_side(saved: Callable[..., Path]) -> None:
    """The checkpoint's is for those that leave it open."""
    ours = read(saved("bert", {"truncation_side": "left"}))
    (left,), (own,), (right,) = (ours(PAIRS[:1], 9, side) for side in ("left", "own", "right"))

    assert own == left != right


@pytest.mark.parametrize("end", ["cls_token", "sep_token"])
def test_an_albert_without_the_tokens_around_a_text_is_refused_by_name(
    saved: Callable[..., Path], end: str
) -> None:
    """Also where they were added to its vocabulary, which transformers does not read for them."""
    folder = saved("albert", {end: "[X]", "added_tokens_decoder": {"80": X}})
    with pytest.raises(TypeError):
        AutoTokenizer.from_pretrained(folder)

    with pytest.raises(CheckpointError, match=f"{end} '\\[X\\]' is not in the vocabulary"):
        read(folder)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"tokenizer_class": "BertJapaneseTokenizer"}, "'BertJapaneseTokenizer' is not sup"),
    "another model": ({"tokenizer_class": "RobertaTokenizer"}, "holds WordPiece, .* rebuilds BPE"),
    "code": ({"auto_map": {"AutoTokenizer": ["x.Y", None]}}, "not supported: auto_map"),
    "a template": ({"chat_template": "{{ x }}"}, "not supported: chat_template"),
    "no side": ({"truncation_side": "middle"}, "truncation_side 'middle' is no side"),
    "no switch": ({"do_lower_case": "yes"}, "do_lower_case is neither true nor false: 'yes'"),
    "no names": ({"model_input_names": ["input_ids"]}, "lacks attention_mask and input_ids"),
    "no token": ({"sep_token": 3}, "sep_token is no token: 3"),
    "a lost token": ({"cls_token": None}, "cls_token is null, and the texts need it"),
    "a new unknown": ({"unk_token": "[X]"}, "unk_token '\\[X\\]' is not in the vocabulary"),
    "a space before": ({"sep_token": " ate"}, "that is named cannot be made: Missing SpecialToken"),
    "no decoder": ({"added_tokens_decoder": {"a": X}}, "added_tokens_decoder has no tokens by id"),
}


@pytest.mark.parametrize(("said", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_followed_is_refused_by_name(
    saved: Callable[..., Path], said: dict[str, Any], message: str
) -> None:
    """In one line."""
    folder = saved("bert", said)

    with pytest.raises(CheckpointError, match=message) as refused:
        read(folder)
    assert "\n" not in str(refused.value)
