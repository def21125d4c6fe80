"""model/loading/agreement.py: what contradicts tokenizer.json is refused by the field's name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers
from transformers import (
    AlbertTokenizer,
    AutoTokenizer,
    BertTokenizer,
    DebertaV2Tokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from model import families
from model.errors import CheckpointError
from model.loading.agreement import read_tokenizer
from model.loading.tokenizer_settings import TokenizerRules
from model.text.tokenizer import Tokenizer

TEXTS = [
    "Why is the Dog here?",
    "A caf\u00e9 in M\u00e9xico \u4f60\u597d ate",
    "It was [SEP] hungry </s> [X] <mask>  it",
    "don't stop stra\u00dfe 12,5 \ufb01n \u0130",
]
PAIRS = [*zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
ROBERTA = {"tokenizer_class": "RobertaTokenizer"}
BERT_CLASS = {"tokenizer_class": "BertTokenizerFast"}
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
X = {"content": "[X]", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False}
CLS = {**X, "content": "[CLS]", "lstrip": False, "special": True}


def wordpiece() -> Any:
    """A BERT's, as its class makes it."""
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=99, special_tokens=BERT, show_progress=False)
    library.train_from_iterator([*TEXTS, *map(str.lower, TEXTS)], trainer)
    return BertTokenizer(vocab=library.get_vocab())


def byte_level() -> Any:
    """A RoBERTa's."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=MARKED, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    model = json.loads(library.to_str())["model"]
    return RobertaTokenizer(vocab=model["vocab"], merges=list(map(tuple, model["merges"])))


def unigram(kind: Any, special: list[str]) -> Callable[[], Any]:
    """One of SentencePiece's."""

    def make() -> Any:
        library = Library(models.Unigram())
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        unknown = "[UNK]" if "[UNK]" in special else "<unk>"
        trainer = trainers.UnigramTrainer(
            vocab_size=80, special_tokens=special, unk_token=unknown, show_progress=False
        )
        library.train_from_iterator(TEXTS, trainer)
        vocabulary = json.loads(library.to_str())["model"]["vocab"]
        return kind(vocab=[(word, score) for word, score in vocabulary])

    return make


FAMILIES: dict[str, Callable[[], Any]] = {
    "bert": wordpiece,
    "roberta": byte_level,
    "xlm-roberta": unigram(XLMRobertaTokenizer, MARKED),
    "albert": unigram(AlbertTokenizer, ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "deberta-v2": unigram(DebertaV2Tokenizer, ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]),
}
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A folder of a family's tokenizer as its class makes it, and what is said of it."""

    def save(family: str, said: dict[str, Any], **files: Any) -> Path:
        stored = json.loads(FAMILIES[family]().backend_tokenizer.to_str())
        stored["truncation"] = files.pop("truncation", None)
        (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
        contents = {"config": {"model_type": family}, "tokenizer_config": said} | files
        for name, content in contents.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return save


def read(folder: Path) -> Tokenizer:
    """The tokenizer as we read it."""
    return read_both(folder)[0]


def read_both(folder: Path) -> tuple[Tokenizer, TokenizerRules]:
    """The tokenizer, and the rules that it was judged by."""
    config = json.loads((folder / "config.json").read_text())
    family = families.find_family(config)
    assert family
    return read_tokenizer(folder, family, config)


LEFT = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
NAMES = ["input_ids", "token_type_ids", "attention_mask"]
AGREEING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((family, {}, {}) for family in FAMILIES),
    ("bert", {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}, {}),
    ("bert", {"truncation_side": "left"}, {}),
    ("bert", {"truncation_side": "right"}, {"truncation": LEFT}),
    ("bert", {}, {"truncation": LEFT}),
    ("bert", {"model_input_names": ["input_ids", "attention_mask"]}, {}),
    ("bert", {"model_input_names": NAMES, "tokenizer_class": "TokenizersBackend"}, {}),
    ("bert", {"tokenizer_class": "DistilBertTokenizerFast"}, {}),
    ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    ("bert", {"cls_token": "[CLS]", "clean_up_tokenization_spaces": True, "never_split": 1}, {}),
    ("bert", {}, {"special_tokens_map": {"cls_token": X | {"content": "[CLS]"}}}),
    ("roberta", {"add_prefix_space": False, "trim_offsets": True}, {}),
    ("albert", {"model_input_names": NAMES}, {}),
]


@pytest.mark.parametrize(("family", "said", "files"), AGREEING, ids=str)
def test_what_agrees_is_read_as_transformers_reads_it(
    save: Save, family: str, said: dict[str, Any], files: dict[str, Any]
) -> None:
    """Ids, types and offsets of pairs, and where they are cut."""
    folder = save(family, said, **files)
    peer, ours = AutoTokenizer.from_pretrained(folder), read(folder)

    for pair, found in zip(PAIRS, ours(PAIRS, 512), strict=True):
        theirs = peer(*pair, return_offsets_mapping=True)
        assert found.token_ids == theirs["input_ids"]
        assert found.offsets == theirs["offset_mapping"]
        assert found.types == theirs.get("token_type_ids", [0] * len(found.types))
    for pair, found in zip(PAIRS, ours(PAIRS, 11, "own"), strict=True):
        theirs = peer(*pair, truncation="longest_first", max_length=11)
        assert found.token_ids == theirs["input_ids"]


def test_a_side_that_a_request_names_stays_that_side(save: Save) -> None:
    """The checkpoint's is for those that leave it open."""
    ours = read(save("bert", {"truncation_side": "left"}))
    (left,), (own,), (right,) = (ours(PAIRS[:1], 9, side) for side in ("left", "own", "right"))

    assert own == left != right


# a family, what is said in which file, and what is told
CONTRADICTIONS: list[tuple[str, str, dict[str, Any], str]] = [
    ("bert", SAID := "tokenizer_config", {"do_lower_case": False}, "do_lower_case is false"),
    ("bert", SAID, {"strip_accents": False}, "strip_accents is false"),
    ("bert", SAID, {"tokenize_chinese_chars": False}, "tokenize_chinese_chars is false"),
    ("bert", SAID, {"cls_token": "[MASK]"}, "cls_token and sep_token are '.MASK.'"),
    ("bert", SAID, {"sep_token": None}, "cls_token and sep_token are '.CLS.' and None"),
    ("bert", SAID, {"unk_token": "[PAD]"}, "unk_token is '.PAD.', and the file has '.UNK.'"),
    ("bert", SAID, {"mask_token": "[X]"}, "mask_token is '.X.', and the file does not find"),
    ("bert", SAID, {"extra_special_tokens": ["dog"]}, "extra_special_tokens is 'dog'"),
    ("bert", SAID, {"additional_special_tokens": ["dog"]}, "extra_special_tokens is 'dog'"),
    ("bert", SAID, {"extra_special_tokens": {"a_token": "dog"}}, "a_token is 'dog'"),
    ("bert", SAID, {"added_tokens_decoder": {"99": X}}, "added token 99 is '.X.'"),
    ("bert", SAID, {"added_tokens_decoder": {"2": CLS | {"rstrip": True}}}, "added token 2 is"),
    ("bert", "added_tokens", {"hungry": 99}, "added token 99 is 'hungry'"),
    ("bert", "special_tokens_map", {"cls_token": "[MASK]"}, "cls_token and sep_token are"),
    ("roberta", SAID, {"add_prefix_space": True}, "add_prefix_space is true"),
    ("roberta", SAID, {"trim_offsets": False}, "trim_offsets is false"),
    ("roberta", SAID, {"sep_token": "<mask>"}, "cls_token and sep_token are '<s>' and '<mask>'"),
    ("xlm-roberta", SAID, {"add_prefix_space": False}, "add_prefix_space is false"),
    ("xlm-roberta", SAID, {"unk_token": "<pad>"}, "unk_token is '<pad>'"),
    ("albert", SAID, {"do_lower_case": False}, "do_lower_case is false"),
    ("albert", SAID, {"keep_accents": True}, "keep_accents is true"),
    ("deberta-v2", SAID, {"do_lower_case": True}, "do_lower_case is true"),
    ("deberta-v2", SAID, {"split_by_punct": True}, "split_by_punct is true"),
]


@pytest.mark.parametrize(("family", "file", "said", "told"), CONTRADICTIONS, ids=str)
def test_a_contradiction_is_refused_by_name(
    save: Save, family: str, file: str, said: dict[str, Any], told: str
) -> None:
    """In one line, with the command that makes a file that agrees."""
    folder = save(family, {}, **{file: said})

    with pytest.raises(CheckpointError, match=f"contradicts tokenizer.json: .*{told}") as refused:
        read(folder)
    assert "\n" not in str(refused.value)
    assert f"headlight convert {folder} OUT" in str(refused.value)


# the family of tokenizer.json, config.json, what is said of the tokenizer, and what is told
OF_ANOTHER_KIND: list[tuple[str, dict[str, Any], dict[str, Any] | None, str]] = [
    ("xlm-roberta", {"model_type": "bert"}, None, UNNAMED := "no file names a class; the family's"),
    ("xlm-roberta", {"model_type": "bert"}, {"do_lower_case": True, "sep_token": "</s>"}, UNNAMED),
    ("xlm-roberta", {"model_type": "roberta"}, {"model_max_length": 7}, UNNAMED),
    ("bert", {"model_type": "xlm-roberta"}, {"strip_accents": None}, UNNAMED),
    ("roberta", {"model_type": "gemma3_text"}, {}, "GemmaTokenizer, is of BPE"),
    ("xlm-roberta", {"model_type": "bert"}, ROBERTA, "tokenizer_class RobertaTokenizer is of byte"),
    ("xlm-roberta", {"model_type": "xlm-roberta"}, ROBERTA, "and the file holds Unigram"),
    ("xlm-roberta", {"model_type": "bert"} | BERT_CLASS, None, "BertTokenizer is of WordPiece"),
    ("bert", {"model_type": "bert"}, ROBERTA, "and the file holds WordPiece"),
]


@pytest.mark.parametrize(("family", "config", "said", "told"), OF_ANOTHER_KIND, ids=str)
def test_a_file_of_another_kind_than_the_class_is_read_as_it_is(
    save: Save, family: str, config: dict[str, Any], said: dict[str, Any] | None, told: str
) -> None:
    """By its ids and token types, where the class is none's or a wrong one; the rules note it."""
    folder = save(family, said or {}, config=config)
    if said is None:
        (folder / "tokenizer_config.json").unlink()

    ours, rules = read_both(folder)

    file = Library.from_file(str(folder / "tokenizer.json"))
    for pair, found in zip(PAIRS, ours(PAIRS, 512), strict=True):
        theirs = file.encode(*pair)
        assert (found.token_ids, found.types) == (theirs.ids, theirs.type_ids)
    assert told in rules.note


def test_what_no_file_states_contradicts_nothing(save: Save) -> None:
    """The family's class would trim offsets; the file does not, and that is noted."""
    folder = save("roberta", {})
    (folder / "tokenizer_config.json").unlink()
    assert read_both(folder)[1].note == ""
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["post_processor"]["trim_offsets"] = False
    (folder / "tokenizer.json").write_text(json.dumps(stored))

    ours, rules = read_both(folder)

    assert ours([("a dog",)], 9)[0].offsets[2][0] == 1  # with the space before it
    assert "no file names a class; by the family's, trim_offsets is true" in rules.note
    named = {"tokenizer_class": "RobertaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    with pytest.raises(CheckpointError, match="contradicts tokenizer.json: trim_offsets is true"):
        read(folder)


def test_what_convert_would_not_mend_is_not_sent_to_it(save: Save) -> None:
    """It would make a tokenizer of another kind."""
    folder = save("xlm-roberta", {"mask_token": "[X]"}, config={"model_type": "bert"})

    with pytest.raises(CheckpointError, match="find it in texts; mend tokenizer_config.json$"):
        read(folder)


def test_a_token_of_the_file_alone_is_a_contradiction_where_all_are_listed(save: Save) -> None:
    """transformers would not find it in texts."""
    folder = save("bert", {"added_tokens_decoder": {"2": CLS}, "mask_token": "[MASK]"})

    with pytest.raises(CheckpointError, match=r"added_tokens_decoder lacks 0, '\[PAD\]'"):
        read(folder)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"tokenizer_class": "BertJapaneseTokenizer"}, "'BertJapaneseTokenizer' is not sup"),
    "code": ({"auto_map": {"AutoTokenizer": ["x.Y", None]}}, "not supported: auto_map"),
    "a template": ({"chat_template": "{{ x }}"}, "not supported: chat_template"),
    "split ones": ({"split_special_tokens": True}, "not supported: split_special_tokens"),
    "no side": ({"truncation_side": "middle"}, "truncation_side 'middle' is no side"),
    "no switch": ({"do_lower_case": "yes"}, "do_lower_case is neither true nor false: 'yes'"),
    "no names": ({"model_input_names": ["input_ids"]}, "lacks attention_mask and input_ids"),
    "no token": ({"sep_token": 3}, "sep_token is no token: 3"),
    "no decoder": ({"added_tokens_decoder": {"a": X}}, "added_tokens_decoder has no tokens by id"),
}


@pytest.mark.parametrize(("said", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_followed_is_refused_by_name(
    save: Save, said: dict[str, Any], message: str
) -> None:
    """In one line."""
    folder = save("bert", said)

    with pytest.raises(CheckpointError, match=message) as refused:
        read(folder)
    assert "\n" not in str(refused.value)
