"""model/text/tokenizer.py: what transformers' fast tokenizer says, and what it does not."""

import json
import time
import unicodedata
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    Encoding,
    Regex,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Library
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from model import families
from model.errors import CheckpointError, SequenceTooLong
from model.loading.agreement import read_tokenizer
from model.loading.checkpoint import Model
from model.text import pieces
from model.text.frame import Tokenized
from model.text.pieces import Seams, run_reading, share_room
from model.text.tokenizer import Texts, Tokenizer, Truncate

LIMIT = 512
ODD = [
    "",
    " \t\n ",
    "\x00\x01\ufffd",
    "e\u0301 \u00e9 \u0130stanbul \ufb01n",
    "a" * 101,
    "\u202eright to left\u202c \u0639\u0631\u0628\u064a",
    "[MASK] and [CLS] in the text, [unused7] too",
    "\U0001f469\u200d\U0001f4bb \u6f22\u5b57 \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
]


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> Tokenizer:
    """Ours, of the bundled model."""
    return model.tokenizer


@pytest.fixture(scope="module")
def peer(folder: Path) -> Any:
    """transformers' fast tokenizer of the same file."""
    return AutoTokenizer.from_pretrained(folder)


def same(ours: Tokenized, peer: Any, text: Texts, **options: Any) -> bool:
    """Whether everything transformers says of a text is what ours says."""
    theirs = peer(
        *([part] for part in text),  # a list, as a lone pair with "" is taken for a single text
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        **options,
    )
    return (
        ours.token_ids == theirs["input_ids"][0]
        and ours.offsets == theirs["offset_mapping"][0]
        and ours.types == theirs.get("token_type_ids", [[0] * len(ours.types)])[0]
        and ours.special == [bool(flag) for flag in theirs["special_tokens_mask"][0]]
        and ours.tokens == theirs.tokens(0)
        and ours.words == theirs.word_ids(0)
    )


def test_texts_are_read_as_by_transformers(
    tokenizer: Tokenizer, peer: Any, texts: list[str]
) -> None:
    """Ids, tokens, offsets, types and words of every text, odd ones included."""
    every: list[Texts] = [(text,) for text in [*texts, *ODD]]

    for text, ours in zip(every, tokenizer(every, LIMIT), strict=True):
        assert same(ours, peer, text)


def test_pairs_are_read_as_by_transformers(
    tokenizer: Tokenizer, peer: Any, texts: list[str]
) -> None:
    """Each sentence with its neighbour, and texts alone."""
    short = texts[:46] + ODD
    pairs: list[Texts] = list(zip(short, short[1:] + short[:1], strict=True))

    for pair, ours in zip(pairs, tokenizer(pairs, LIMIT), strict=True):
        assert same(ours, peer, pair)


@given(text=st.text(max_size=61))
def test_any_characters_are_read_as_by_transformers(
    tokenizer: Tokenizer, peer: Any, text: str
) -> None:
    """Whatever Unicode holds, and each offset is a place in the text."""
    (ours,) = tokenizer([(text,)], LIMIT)

    assert same(ours, peer, (text,))
    assert all(0 <= start <= end <= len(text) for start, end in ours.offsets)


@given(text=st.text(max_size=61), beside=st.text(max_size=61))
def test_without_facts_a_text_has_the_same_ids(
    tokenizer: Tokenizer, text: str, beside: str
) -> None:
    """Alone or in a pair, with types and length; nothing else is made of it."""
    texts: list[Texts] = [(text,), (text, beside)]
    whole = tokenizer(texts, LIMIT)

    for ours, wanted in zip(
        run_reading(tokenizer.read_texts(texts, LIMIT, facts=False)), whole, strict=True
    ):
        assert (ours.token_ids, ours.types, ours.length) == (
            wanted.token_ids,
            wanted.types,
            wanted.length,
        )
        assert ours.offsets == ours.tokens == ours.words == []


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [3, 4, 5, 8, 13, 21, 256])
def test_a_text_is_cut_as_by_transformers(
    tokenizer: Tokenizer, peer: Any, texts: list[str], side: Truncate, limit: int
) -> None:
    """At the end or at the start; special tokens stay."""
    peer.truncation_side = side
    every: list[Texts] = [(text,) for text in texts[::3]]

    for text, ours in zip(every, tokenizer(every, limit, side), strict=True):
        assert same(ours, peer, text, truncation="longest_first", max_length=limit)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [5, 6, 7, 12, 23, 24, 25, 41, 256])
def test_a_pair_is_cut_as_by_transformers(
    tokenizer: Tokenizer, peer: Any, texts: list[str], side: Truncate, limit: int
) -> None:
    """The longer text gives way first, whichever it is."""
    peer.truncation_side = side
    pairs: list[Texts] = list(zip(texts[::2], reversed(texts[1::2]), strict=False))
    pairs += [(texts[40], texts[3]), (texts[3], texts[40]), (texts[40], texts[40])]

    for pair, ours in zip(pairs, tokenizer(pairs, limit, side), strict=True):
        assert same(ours, peer, pair, truncation="longest_first", max_length=limit)


lengths = st.integers(0, 30)


@given(first=lengths, second=lengths, room=st.integers(2, 41))
def test_a_pair_shares_its_room_as_in_the_library(first: int, second: int, room: int) -> None:
    """The rule written here is the library's own, for every two lengths."""
    library = words_only()
    library.enable_truncation(room, strategy="longest_first")
    theirs: Encoding = library.encode("a " * first, "a " * second)

    ours = share_room([first, second], room)

    assert ours == [theirs.sequence_ids.count(0), theirs.sequence_ids.count(1)]


def words_only() -> Library:
    """A tokenizer of one word, which adds nothing."""
    return Library.from_str(
        '{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],'
        ' "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,'
        ' "decoder": null, "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}'
    )


def test_what_the_file_says_of_cutting_and_padding_is_switched_off(
    tokenizer: Tokenizer, folder: Path, essay: str
) -> None:
    """The bundled file cuts and pads to 128 tokens; the caller decides instead."""
    stored = Library.from_file(str(folder / "tokenizer.json"))
    assert (len(stored.encode(essay)), len(stored.encode("Yes."))) == (128, 128)

    long, short = tokenizer([(essay,), ("Yes.",)], 1000)

    assert len(long.token_ids) > LIMIT
    assert short.token_ids == [101, 2748, 1012, 102]


def test_a_cut_text_tells_how_long_it_was(tokenizer: Tokenizer) -> None:
    """Length counts the tokens before the cut, special ones included."""
    cut, whole = tokenizer([("a dog ate the food",), ("a dog",)], 5, "right")

    assert (cut.length, len(cut.token_ids)) == (7, 5)
    assert (whole.length, len(whole.token_ids)) == (4, 4)


def test_a_text_too_long_is_refused_with_its_place_and_length(tokenizer: Tokenizer) -> None:
    """Nothing is cut unasked."""
    with pytest.raises(SequenceTooLong) as refused:
        tokenizer([("a dog",), ("a dog ate",), ("a dog ate the food",)], 5)

    assert (refused.value.index, refused.value.length, refused.value.limit) == (2, 7, 5)


@pytest.mark.parametrize(
    ("text", "length", "limit"),
    [(("a dog ate",), 5, 2), (("a dog ate", "a dog"), 8, 4)],
    ids=["text", "pair"],
)
def test_a_limit_without_room_for_any_word_is_refused(
    tokenizer: Tokenizer, text: Texts, length: int, limit: int
) -> None:
    """Special tokens alone, or half a pair, would say nothing of the text."""
    with pytest.raises(SequenceTooLong) as refused:
        tokenizer([text], limit, "right")

    assert (refused.value.length, refused.value.limit) == (length, limit)


def test_each_token_of_a_pair_knows_its_text(tokenizer: Tokenizer) -> None:
    """A special token belongs to the text before it."""
    (pair,) = tokenizer([("a dog", "it ate")], LIMIT)

    assert pair.tokens == ["[CLS]", "a", "dog", "[SEP]", "it", "ate", "[SEP]"]
    assert pair.segments == [0, 0, 0, 0, 1, 1, 1]


def test_a_cut_pair_still_knows_its_texts(tokenizer: Tokenizer) -> None:
    """Offsets and segments are those of the tokens that are left."""
    (pair,) = tokenizer([("a dog ate the food", "it did")], 8, "left")

    assert pair.tokens == ["[CLS]", "ate", "the", "food", "[SEP]", "it", "did", "[SEP]"]
    assert pair.segments == [0, 0, 0, 0, 0, 1, 1, 1]
    assert pair.offsets[1] == (6, 9)


def test_a_prompts_tokens_have_no_place_and_no_word(tokenizer: Tokenizer) -> None:
    """The text's own count as if it stood alone; a token of both is where the text's part is."""
    (apart,) = tokenizer([("All is well",)], LIMIT, prompt="search for: ")
    (joined,) = tokenizer([("fix it",)], LIMIT, prompt="pre")

    assert apart.tokens[1:-1] == ["search", "for", ":", "all", "is", "well"]
    assert apart.offsets[1:-1] == [(0, 0)] * 3 + [(0, 3), (4, 6), (7, 11)]
    assert apart.words == [None] * 4 + [0, 1, 2, None] and apart.length == 8
    assert joined.tokens[1:-1] == ["prefix", "it"]
    assert joined.offsets[1:-1] == [(0, 3), (4, 6)] and joined.words[1:-1] == [0, 1]


def test_a_prompt_stands_before_a_pairs_first_text(tokenizer: Tokenizer) -> None:
    """The second counts as it does without one."""
    (pair,) = tokenizer([("a dog", "it ate")], LIMIT, prompt="say: ")

    assert pair.tokens == ["[CLS]", "say", ":", "a", "dog", "[SEP]", "it", "ate", "[SEP]"]
    assert pair.words == [None, None, None, 0, 1, None, 0, 1, None]
    assert pair.segments == [0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert pair.offsets[3:] == [(0, 1), (2, 5), (0, 0), (0, 2), (3, 6), (0, 0)]


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_cut_text_counts_its_words_from_its_start(tokenizer: Tokenizer, side: Truncate) -> None:
    """Whatever is left of its prompt."""
    (found,) = tokenizer([("one two three four",)], 5, side, prompt="say: ")

    left = {"right": ["say", ":", "one"], "left": ["two", "three", "four"]}
    words: dict[str, list[int | None]] = {"right": [None, None, 0], "left": [1, 2, 3]}
    assert (found.tokens[1:-1], found.words[1:-1]) == (left[side], words[side])
    assert found.length == 8


def test_texts_are_shown_whole_and_ids_become_text(tokenizer: Tokenizer) -> None:
    """With special tokens or without, however long."""
    (whole,) = run_reading(tokenizer.read_whole(["well " * 600], special=True, most=602))
    (plain,) = run_reading(tokenizer.read_whole(["All is well"], special=False, most=3))

    assert whole.length == len(whole.token_ids) == 602
    assert plain.tokens == ["all", "is", "well"] and not any(plain.special)
    assert tokenizer.text_of(plain.token_ids, special=False) == "all is well"
    assert tokenizer.text_of([101, *plain.token_ids], special=True) == "[CLS] all is well"


def test_a_token_is_found_by_its_id(tokenizer: Tokenizer) -> None:
    """And an id without a token is no error."""
    assert tokenizer.tokens_of([3899, 30522]) == ["dog", None]


@pytest.mark.parametrize("text", ["", "{}", "no JSON", '{"version": "1.0"}'])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Whatever the library makes of it, the refusal is ours."""
    path = tmp_path / "tokenizer.json"
    path.write_text(text)

    with pytest.raises(CheckpointError, match="tokenizer.json cannot be read"):
        Tokenizer(path)


TRICKY = [
    "A dog ate the food, because it was hungry.",
    "caf\u00e9 cafe\u0301 na\u00efve",  # composed, then combining
    "\U0001f469\u200d\U0001f4bb wrote \U0001f600\U0001f600 code",  # joined and doubled emoji
    "\u6f22\u5b57\u3068\u304b\u306a \ud55c\uad6d\uc5b4",
    "  two  spaces\tand\nlines ",
    "\u0639\u0631\u0628\u064a \u0e44\u0e17\u0e22 \ufb01n \u00bd",
    "",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKED = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def wordpiece(texts: list[str]) -> Library:
    """As BERT's."""
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    library.train_from_iterator(texts, trainer)
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return library


def byte_level(texts: list[str]) -> Library:
    """As RoBERTa's."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=MARKED,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    library.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return library


def modern(texts: list[str]) -> Library:
    """As ModernBERT's: bytes again, composed first, the template of BERT."""
    library = byte_level(texts)
    library.normalizer = normalizers.NFC()
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return library


def unigram(texts: list[str]) -> Library:
    """As XLM-RoBERTa's, of SentencePiece."""
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=MARKED, unk_token="<unk>", show_progress=False
    )
    library.train_from_iterator(texts, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return library


def spaced(texts: list[str]) -> Library:
    """As some RoBERTa's: a text begins as if behind a space."""
    library = byte_level(texts)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True
    )
    return library


def qwen2(texts: list[str]) -> Library:
    """As Qwen2's: words by a pattern, composed first, an end and no beginning."""
    library = Library(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces.QWEN2_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>",
        pair="$A <|endoftext|> $B <|endoftext|>",
        special_tokens=[("<|endoftext|>", 0)],
    )
    return library


def gemma(texts: list[str]) -> Library:
    """As Gemma's: all of a text is one word, of pieces that have its spaces, or of bytes."""
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    library = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(vocab_size=260, special_tokens=marks, show_progress=False)
    library.train_from_iterator([text.replace(" ", "\u2581 ") for text in texts], trainer)
    stored = json.loads(library.to_str())
    words = stored["model"]["vocab"]
    words |= {byte: len(words) + place for place, byte in enumerate(bytes_)}
    library = Library.from_str(json.dumps(stored))
    library.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos> $B <eos>",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    return library


def typed(texts: list[str]) -> Library:
    """As BERT's, read as it is, and its pairs get token types all the same."""
    return wordpiece(texts)


KINDS = {f.__name__: f for f in (wordpiece, byte_level, modern, unigram, qwen2, gemma, typed)}
NAMES = ["input_ids", "token_type_ids", "attention_mask"]
SAID: dict[str, dict[str, Any]] = {  # by the kind's name: the family, and what is said of it
    "wordpiece": {"model_type": "bert"},
    "byte_level": {"model_type": "roberta"},
    "modern": {"model_type": "modernbert"},
    "unigram": {"model_type": "xlm-roberta", "tokenizer_class": "PreTrainedTokenizerFast"},
    "qwen2": {"model_type": "qwen3"},
    "gemma": {"model_type": "gemma3_text"},
    "typed": {"model_type": "bert", "tokenizer_class": "TokenizersBackend"}
    | {"model_input_names": NAMES},
}


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def kind(
    request: pytest.FixtureRequest, texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    """A tokenizer of each kind as we read it from its folder, and as transformers does."""
    library = request.param([*texts[:60], *TRICKY])
    folder, said = tmp_path_factory.mktemp("tokenizer"), dict(SAID[request.param.__name__])
    library.save(str(folder / "tokenizer.json"))
    config = {"model_type": said.pop("model_type")}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    peer = AutoTokenizer.from_pretrained(folder)
    peer.backend_tokenizer.save(str(folder / "tokenizer.json"))  # with the steps of its class
    family = families.find_family(config)
    assert family
    return read_tokenizer(folder, family, {})[0], peer


Kind = tuple[Tokenizer, PreTrainedTokenizerFast]


def test_every_kind_reads_texts_and_pairs_as_transformers_does(
    kind: Kind, texts: list[str]
) -> None:
    """WordPiece, bytes and SentencePiece: ids, offsets, types, words, special flags."""
    ours, peer = kind
    every: list[Texts] = [(text,) for text in [*texts[:30], *TRICKY]]
    every += list(zip(TRICKY, TRICKY[1:] + TRICKY[:1], strict=True))

    for text, found in zip(every, ours(every, LIMIT), strict=True):
        assert same(found, peer, text)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [6, 9, 12])
def test_every_kind_is_cut_as_transformers_does(kind: Kind, side: Truncate, limit: int) -> None:
    """Texts and pairs, at the end and at the start."""
    ours, peer = kind
    peer.truncation_side = side
    every: list[Texts] = [(text,) for text in TRICKY]
    every += list(zip(TRICKY, TRICKY[2:] + TRICKY[:2], strict=True))

    for text, found in zip(every, ours(every, limit, side), strict=True):
        assert same(found, peer, text, truncation="longest_first", max_length=limit)


@pytest.mark.parametrize("side", ["right", "left"])
def test_of_a_pair_the_first_text_alone_is_cut_as_by_transformers(
    kind: Kind, side: Truncate
) -> None:
    """Down to one token, where that is asked; if none is left of it, the pair is refused."""
    ours, peer = kind
    peer.truncation_side = side
    pair = (TRICKY[0], "It is")
    first, second = (len(peer(text, add_special_tokens=False).input_ids) for text in pair)
    fixed = second + peer.num_special_tokens_to_add(pair=True)

    for limit in range(fixed + 1, fixed + first + 2):
        (found,) = run_reading(ours.read_texts([pair], limit, side, second_whole=True))
        assert same(found, peer, pair, truncation="only_first", max_length=limit)
    with pytest.raises(SequenceTooLong):
        run_reading(ours.read_texts([pair], fixed, side, second_whole=True))


def test_offsets_of_every_kind_are_characters_of_the_given_text(kind: Kind) -> None:
    """In order, within the text, together all of it but space; not bytes, and not of a normal form.

    An emoji that became several byte tokens is the place of each of them.
    """
    ours, _ = kind

    for text, found in zip(TRICKY, ours([(text,) for text in TRICKY], LIMIT), strict=True):
        places = [at for at, added in zip(found.offsets, found.special, strict=True) if not added]
        covered = {place for start, end in places for place in range(start, end)}
        assert places == sorted(places) and all(0 <= a <= b <= len(text) for a, b in places)
        missed = {text[place] for place in range(len(text)) if place not in covered}
        assert all(c.isspace() or unicodedata.category(c) in ("Mn", "Cf") for c in missed)


def test_a_word_of_every_kind_is_found_where_it_stands(kind: Kind) -> None:
    """Behind characters that take several bytes, or fewer when normalised."""
    text = "\U0001f469\u200d\U0001f4bb cafe\u0301 \u6f22 dog"
    ours, _ = kind
    (found,) = ours([(text,)], LIMIT)

    places = [text[start:end] for start, end in found.offsets if end > text.index("dog")]
    spelled = "".join(places).strip()  # a space before it may be the token's own

    assert spelled == "dog"


def test_tokens_of_every_kinds_pair_know_their_text(kind: Kind) -> None:
    """A special token, of which there may be two, belongs to the text before it."""
    ours, _ = kind
    (pair,) = ours([("a dog", "it ate")], LIMIT)

    theirs = [part for part, added in zip(pair.segments, pair.special, strict=True) if not added]
    assert theirs == sorted(theirs) and set(theirs) == {0, 1}
    assert pair.segments == sorted(pair.segments) and pair.segments[-1] == 1
    second = pair.segments.index(1)
    assert not pair.special[second] and pair.special[second - 1]
    assert pair.offsets[second][0] == 0


def test_special_ids_of_every_kind_are_those_put_around_texts(kind: Kind) -> None:
    """Start, end and what parts a pair; not padding, unknown or mask."""
    ours, peer = kind
    theirs = peer("a dog", "it ate", return_special_tokens_mask=True)

    mask = zip(theirs["input_ids"], theirs["special_tokens_mask"], strict=True)
    assert ours.special_ids == {id for id, added in mask if added}
    assert len(ours.special_ids) == (1 if type(peer).__name__ == "Qwen2Tokenizer" else 2)


@pytest.mark.parametrize("prompt", ["query: ", "pre", "\U0001f469\u200d\U0001f4bb\u00e9 "])
def test_every_kind_reads_a_prompt_as_part_of_the_text(kind: Kind, prompt: str) -> None:
    """The ids of both together; places and words of the text's own, however it is spelled."""
    ours, _ = kind
    given: list[Texts] = [(text,) for text in TRICKY]
    together = ours([(prompt + text,) for text in TRICKY], LIMIT)

    for text, whole, found in zip(TRICKY, together, ours(given, LIMIT, prompt=prompt), strict=True):
        assert (found.token_ids, found.special) == (whole.token_ids, whole.special)
        shown = [text[start:end] for start, end in found.offsets]
        spelled = [(prompt + text)[start:end] for start, end in whole.offsets]
        assert all(ends.endswith(part) for ends, part in zip(spelled, shown, strict=True))
        words = [word for word in found.words if word is not None]
        assert words == sorted(words) and words[:1] in ([], [0])


HOSTILE = {
    "dots": ".",
    "one word": "a",
    "no word": "\u6f22",
    "alternating": "a\u0301\U0001f469\u200d\u6f22 ",
    "spaces": " ",
    "decomposing": "\ufdfa",  # one character that stands for eighteen
}


@pytest.mark.prove
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_time_is_linear_in_the_text(kind: Kind, unit: str) -> None:
    """Twice the text takes less than three times as long, up to the longest that is admitted."""
    ours, _ = kind

    def seconds(characters: int) -> float:
        text = (unit * characters)[:characters]
        times = []
        for _ in range(3):
            start = time.process_time()  # others may keep the machine busy
            ours([(text,)], LIMIT, "right")
            times.append(time.process_time() - start)
        return min(times)

    took = {size: seconds(size) for size in (65_536, 131_072, 262_144)}

    print({size: round(each, 3) for size, each in took.items()})
    assert took[131_072] / took[65_536] < 3 and took[262_144] / took[131_072] < 3


STEPS: dict[str, normalizers.Normalizer | None] = {
    "none": None,
    "one": normalizers.NFC(),
    "several": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "its own": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_lower_cased_text_keeps_the_offsets_of_the_text_as_it_came(
    tmp_path: Path, steps: normalizers.Normalizer | None
) -> None:
    """Also behind a letter that becomes two (\u0130), before and after a prompt, and when cut."""
    library = Library(models.WordLevel({"[UNK]": 0, "big": 1, "is": 2}, "[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if steps is not None:
        library.normalizer = steps
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", lower_case=True)
    text = "\u0130\u0130 IS \u0130x Big"

    whole, behind = tokenizer([(text,)], 9)[0], tokenizer([(text,)], 9, prompt="\u0130 IS: ")[0]
    cut = tokenizer([(text,)], 2, "left")[0]

    places = [(0, 2), (3, 5), (6, 8), (9, 12)]
    assert whole.offsets == places and whole.token_ids == [0, 2, 0, 1]
    assert behind.offsets == [(0, 0), (0, 0), *places] and behind.token_ids[2:] == [0, 2, 0, 1]
    assert cut.offsets == places[2:] and cut.token_ids == [0, 1]


# Texts that a cut could hurt, long enough for several pieces of the size that the tests set
NASTY = {
    "words": "A dog ate the food because it was hungry. " * 20,
    "dots": "." * 501,
    "one word": "a" * 503,
    "a long word among others": "be " * 40 + "a" * 307 + " be it" * 40,
    "signs": "\u6f22\u5b57" * 250,
    "signs and letters": "\u6f22a\u5b57b " * 90,
    "marks": "e\u0301\u0323 a\u0323\u0301" * 70,
    "marks behind what ends a word": (".\u0301 \u0338=\u0338 a\u0338 " * 60),
    "spaces": " " * 60 + "a  b   c \t d\n" * 40 + " " * 60,
    "control characters": "a\x00b \x01c\u200b d\ufeff e\r\n" * 40,
    "added tokens": "a [MASK] b [MASK]<mask>a <s> b</s>a" * 30,
    "broken added tokens": "[ MASK ] [[MASK] <mask <mask>> " * 30,
    "contractions": "it's don't 'tis we'll x's'y " * 40,
    "emoji": "\U0001f469\u200d\U0001f4bb a \U0001f1e9\U0001f1ea b " * 40,
    "capitals that become two": "\u0130 \ufb01n \u212a " * 70,
    "no words": "\u0301" * 501,
    "right to left": "\u0639\u0631\u0628\u064a 1 a " * 60,
}

CUTS: list[tuple[int, Truncate]] = [
    (9999, "refuse"),
    (11, "right"),
    (97, "right"),
    (97, "left"),
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few words."""
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 37)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("prompt", ["say: ", pytest.param("", marks=pytest.mark.prove)])
def test_a_text_in_pieces_is_read_as_the_whole(kind: Kind, prompt: str) -> None:
    """Every kind, whole and cut at either side: all that is said of it, and its length."""
    ours, _ = kind
    for (name, text), (limit, truncate) in product(NASTY.items(), CUTS):
        (piecewise,) = ours([(text,)], limit, truncate, prompt)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "PIECE_CHARACTERS", 1_000_000)
            (whole,) = ours([(text,)], limit, truncate, prompt)

        assert piecewise == whole, (name, limit, truncate)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_read_as_far_as_needed_has_the_tokens_of_the_whole(
    kind: Kind, side: Truncate
) -> None:
    """Only how long it is and the number of its first word are not known."""
    ours, _ = kind
    for (name, text), limit in product(NASTY.items(), (3, 11, 97)):
        (whole,) = ours([(text,)], limit, side)
        (partly,) = run_reading(ours.read_texts([(text,)], limit, side, counted=False))

        assert len(partly.token_ids) <= partly.length <= whole.length
        words = [None if word is None else word for word in partly.words]
        if side == "left":
            base = next((word for word in whole.words if word is not None), 0)
            mine = next((word for word in words if word is not None), 0)
            words = [None if word is None else word + base - mine for word in words]
        assert replace(partly, length=whole.length, words=words) == whole, (name, limit)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_text_read_as_far_as_needed_tells_whether_it_was_cut(
    tokenizer: Tokenizer, side: Truncate
) -> None:
    """Wherever pieces end, the place where the room is full among them."""
    for limit in range(3, 25):
        reading = tokenizer.read_texts([("well " * 20,)], limit, side, counted=False, facts=False)
        (partly,) = run_reading(reading)

        assert (len(partly.token_ids) < partly.length) == (limit < 22)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", NASTY.values(), ids=NASTY.keys())
def test_a_piece_does_not_begin_as_a_text_does(tmp_path: Path, text: str) -> None:
    """Where a text begins as if behind a space, and what it keeps of the first is told apart."""
    spaced([*TRICKY, text]).save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(tmp_path / "tokenizer.json")
    for limit, truncate in CUTS:
        (piecewise,) = ours([(text,)], limit, truncate)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "PIECE_CHARACTERS", 1_000_000)
            (whole,) = ours([(text,)], limit, truncate)

        assert piecewise == whole


@pytest.mark.usefixtures("small")
@given(text=st.text(st.sampled_from("ab  .\u0301\u6f22'[M\u00e9\n<s>\U0001f600"), max_size=211))
def test_any_text_in_pieces_is_read_as_the_whole(tokenizer: Tokenizer, text: str) -> None:
    """The bundled model's, of characters that seams are made of."""
    (piecewise,) = tokenizer([(text,)], 9999)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_CHARACTERS", 1_000_000)
        (whole,) = tokenizer([(text,)], 9999)

    assert piecewise == whole


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pair_in_pieces_shares_its_room_as_the_whole(kind: Kind, side: Truncate) -> None:
    """Also where both are longer than all the room, and the longer has one token more."""
    ours, _ = kind
    pairs: list[Texts] = [(a, b) for a in NASTY.values() for b in ("it", NASTY["words"])]

    piecewise = ours(pairs, 98, side)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE_CHARACTERS", 1_000_000)
        whole = ours(pairs, 98, side)

    assert piecewise == whole


def test_little_is_read_of_a_text_that_is_cut(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where words end at spaces, as Gemma's do not; what is read is counted in pieces."""
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 37)
    ours, peer = kind
    reading = ours.read_texts([("well " * 5000,)], 11, "right", counted=False)

    assert sum(1 for _ in reading) < 9
    whole = sum(1 for _ in ours.read_texts([("well " * 5000,)], 11, "right"))
    assert whole > 500 or (whole == 1 and type(peer).__name__ == "GemmaTokenizer")


def test_a_text_of_unknown_steps_is_one_piece(tmp_path: Path) -> None:
    """As is one without words, and one of tokens that are found over any seam."""
    library = wordpiece(TRICKY)
    bert = Seams.find_seams(library)
    library.add_tokens(["a b"])
    library.normalizer = normalizers.Sequence([normalizers.Prepend("_"), library.normalizer])
    odd = Seams.find_seams(library)

    assert len(bert.split("well " * 5000)) > 1
    assert len(bert.split("a" * 250_000)) == len(odd.split("well " * 5000)) == 1
