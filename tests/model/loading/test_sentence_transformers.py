"""A folder of sentence-transformers answers as that library does."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from model import pooling
from model.errors import CheckpointError
from model.loading.checkpoint import Model
from model.packing import Sequence, pack_sequences
from model.pooling import pool_sequence
from tests.model.loads import CPU, load
from tests.model.small_tokenizer import few_words

WIDTH = 15
TEXTS = ["A dog ate the food because it was hungry", "yes", "The animal did not cross the street"]
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a small model with random weights, written by transformers."""
    saved = tmp_path_factory.mktemp("bert")
    torch.manual_seed(2)
    tokenizer = few_words()
    sizes = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=11,
        initializer_range=0.5,
    )
    BertModel(sizes).save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


@pytest.fixture
def small(tmp_path: Path, bert: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(bert, tmp_path / "small"))


Saved = Callable[..., tuple[SentenceTransformer, Path]]


@pytest.fixture(scope="module")
def made(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Put modules behind the small model, the same ones once; gives theirs, and what it saved."""
    known: dict[str, tuple[SentenceTransformer, Path]] = {}

    def make(*parts: nn.Module) -> tuple[SentenceTransformer, Path]:
        if (name := repr(parts)) not in known:
            torch.manual_seed(3)
            peer = SentenceTransformer(modules=[Transformer(str(bert)), *parts], device="cpu")
            peer.max_seq_length = 7
            folder = tmp_path_factory.mktemp("made")
            peer.save_pretrained(str(folder), create_model_card=False)
            known[name] = peer, folder
        return known[name]

    return make


@pytest.fixture
def saved(made: Saved, tmp_path: Path) -> Saved:
    """Put modules behind the small model; gives theirs, and a folder of it to change."""

    def save(*parts: nn.Module) -> tuple[SentenceTransformer, Path]:
        peer, folder = made(*parts)
        return peer, Path(shutil.copytree(folder, tmp_path / "saved"))

    return save


def vectors(model: Model, dimensions: int | None = None, prompt: str = "") -> Tensor:
    """What ours makes of TEXTS, in one batch."""
    how = replace(model.pooling, dimensions=dimensions)
    cut = model.tokenizer([(text,) for text in TEXTS], model.max_tokens, "right", prompt)
    packed = pack_sequences([Sequence(tokens.token_ids) for tokens in cut], CPU)
    last = model.encoder(packed).last
    return torch.stack([pool_sequence(last[packed.rows(i)], how) for i in range(len(TEXTS))])


DECISIONS: list[tuple[str, dict[str, Any]]] = [
    *(("1_Pooling/config.json", {"pooling_mode": mode}) for mode in MODES if mode != "mean"),
    ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}),
    ("sentence_bert_config.json", {"max_seq_length": 5}),
    ("sentence_bert_config.json", {"do_lower_case": True}),
    ("config_sentence_transformers.json", {"prompts": {"query": "q"}}),
    ("config_sentence_transformers.json", {"prompts": {"query": "r"}}),
    (
        "config_sentence_transformers.json",
        {"prompts": {"query": "q"}, "default_prompt_name": "query"},
    ),
    ("config_sentence_transformers.json", {"truncate_dim": 5}),
]
STACKS: dict[str, Callable[[], list[nn.Module]]] = {
    **{mode: (lambda mode=mode: [Pooling(WIDTH, pooling_mode=mode)]) for mode in MODES},
    "three at once": lambda: [Pooling(WIDTH, pooling_mode=("lasttoken", "cls", "mean"))],
    "normalised": lambda: [Pooling(WIDTH, pooling_mode="max"), Normalize()],
    "dense": lambda: [Pooling(WIDTH), Dense(WIDTH, 8), Normalize()],
    "two dense": lambda: [
        Pooling(WIDTH, pooling_mode=("cls", "max")),
        Dense(2 * WIDTH, 19, activation_function=nn.GELU()),
        Dense(19, 6, bias=False, activation_function=nn.Identity()),
    ],
    **{
        f"dense {kind.__name__}": lambda kind=kind: [
            Pooling(WIDTH),
            Dense(WIDTH, 8, activation_function=kind()),
        ]
        for kind in (nn.ReLU, nn.SiLU, nn.Sigmoid)
    },
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_a_folder_of_sentence_transformers_has_its_vectors(
    saved: Saved, stack: Callable[[], list[nn.Module]]
) -> None:
    """Every mode, several at once, Dense layers and Normalize, cut to the stored length."""
    peer, folder = saved(*stack())
    expected = peer.encode(TEXTS, convert_to_tensor=True)

    model = load(folder)

    assert (model.max_tokens, model.pooling.uncut_size(WIDTH)) == (7, expected.shape[1])
    torch.testing.assert_close(vectors(model), expected, rtol=0, atol=1e-5)


def test_an_encoder_in_a_folder_of_its_own_is_found_there(saved: Saved) -> None:
    """As the library's first versions saved it; all that is said of its texts is there too."""
    _, folder = saved(Pooling(WIDTH), Normalize())
    before = vectors(load(folder))
    own = folder / "0_Transformer"
    own.mkdir()
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    for name in (*names, "sentence_bert_config.json"):
        (folder / name).rename(own / name)
    entries = json.loads((folder / "modules.json").read_text())
    entries[0]["path"] = own.name
    (folder / "modules.json").write_text(json.dumps(entries))
    (own / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    peer = SentenceTransformer(str(folder), device="cpu")

    found = vectors(load(folder))

    torch.testing.assert_close(found, peer.encode(TEXTS, convert_to_tensor=True), rtol=0, atol=1e-5)
    assert load(folder).max_tokens == 5 and not torch.equal(found, before)


def test_dimensions_are_cut_behind_the_dense_layer_and_before_the_norm(saved: Saved) -> None:
    """As truncate_dim, then normalised."""
    peer, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8), Normalize())
    whole = peer.encode(TEXTS, convert_to_tensor=True)

    expected = nn.functional.normalize(whole[:, :5], dim=-1)

    torch.testing.assert_close(vectors(load(folder), 5), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("stored", [5, 99])
@pytest.mark.parametrize("last", [[], [Normalize()]], ids=["as it is", "normalised"])
def test_the_stored_number_of_dimensions_is_kept(
    saved: Saved, stored: int, last: list[nn.Module]
) -> None:
    """As the library keeps it; of a vector that it normalised, normalised again."""
    _, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8), *last)
    change(folder / "config_sentence_transformers.json", truncate_dim=stored)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
    if last:
        expected = nn.functional.normalize(expected, dim=-1)

    kept = load(folder).pooling.dimensions

    assert kept == (5 if stored == 5 else None) and expected.shape[1] == min(stored, 8)
    torch.testing.assert_close(vectors(load(folder), kept), expected, rtol=0, atol=1e-5)


def test_a_dense_layer_is_in_the_digest(saved: Saved) -> None:
    """Other vectors are other weights."""
    _, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8))
    before = load(folder).digest

    rewrite(folder / "2_Dense", lambda found: found["linear.bias"].add_(1))

    assert load(folder).digest != before


def test_folders_of_other_answers_have_other_digests(saved: Saved, small: Path) -> None:
    """Of one encoder: every way to one vector, length, case and prompt."""
    _, folder = saved(Pooling(WIDTH), Normalize())
    plain = load(folder).digest
    digests = []
    for name, values in DECISIONS:
        copy = small / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        change(copy / name, **values)
        digests.append(load(copy).digest)
    parts = json.loads((folder / "modules.json").read_text())
    (copy / "modules.json").write_text(json.dumps(parts[:2]))
    digests.append(load(copy).digest)

    assert len({plain, *digests}) == 1 + len(DECISIONS) + 1


def test_how_a_file_is_written_is_nothing_to_the_digest(saved: Saved) -> None:
    """What is read of it counts: here the same pooling, as older versions wrote it, and spaces."""
    _, folder = saved(Pooling(WIDTH), Normalize())
    plain = load(folder).digest

    flags = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags, indent=7))
    (folder / "modules.json").write_text((folder / "modules.json").read_text() + "\n\n")

    assert load(folder).digest == plain


def rewrite(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the tensors of a module's weights."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file; None takes one out."""
    given = {**(json.loads(path.read_text()) if path.exists() else {}), **values}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in given.items() if value is not None}))


FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda found: found.pop("linear.bias"), "missing linear.bias"),
    "extra": (lambda found: found.update({"a.b": torch.ones(3)}), "unexpected a.b"),
    "misshapen": (
        lambda found: found.update({"linear.weight": torch.ones(8, 13)}),
        r"linear.weight is \(8, 13\), not \(8, 15\)",
    ),
    "NaN": (lambda found: found["linear.bias"].fill_(torch.nan), "linear.bias holds NaN"),
}


@pytest.mark.parametrize(("edit", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_tensor_of_a_dense_layer_is_named(
    saved: Saved, edit: Callable[[dict[str, Tensor]], Any], said: str
) -> None:
    """With the file it is in."""
    _, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8))
    rewrite(folder / "2_Dense", edit)

    with pytest.raises(CheckpointError, match=f"2_Dense/model.safetensors: .*{said}"):
        load(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"activation_function": "torch.nn.modules.activation.ELU"}, "activation_function .*ELU'"),
        ({"activation_function": "mine.Tanh"}, "activation_function 'mine.Tanh'"),
        ({"activation_function": None}, "activation_function None"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'"),
    ],
    ids=str,
)
def test_another_dense_layer_is_refused_by_name(
    saved: Saved, values: dict[str, Any], said: str
) -> None:
    """Nothing is guessed, and no code of another imported."""
    _, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8))
    change(folder / "2_Dense" / "config.json", **values)

    with pytest.raises(CheckpointError, match=f"2_Dense: not supported: {said}"):
        load(folder)


def test_a_dense_layer_in_a_pickle_is_not_read(saved: Saved) -> None:
    """The refusal says how to convert it."""
    _, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8))
    dense = folder / "2_Dense"
    torch.save(load_file(dense / "model.safetensors"), dense / "pytorch_model.bin")
    (dense / "model.safetensors").unlink()

    with pytest.raises(
        CheckpointError,
        match="2_Dense/pytorch_model.bin is a pickle, .* `headlight convert .* OUT`",
    ):
        load(folder)


def test_a_dense_layer_without_weights_is_named(saved: Saved) -> None:
    """By its file."""
    _, folder = saved(Pooling(WIDTH), Dense(WIDTH, 8))
    (folder / "2_Dense" / "model.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"lacks 2_Dense/model\.safetensors; .* convert ORG"):
        load(folder)


CASED = ["A DOG Ate the food", "\u0130stanbul IS Big", "STRASSE STRA\u1e9eE \u03a3\u03a3", "yes"]


def keep_case(folder: Path) -> None:
    """Give a folder a tokenizer that lower-cases nothing by itself."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["normalizer"] = {**stored["normalizer"], "lowercase": False, "strip_accents": False}
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_texts_are_lower_cased_where_sentence_transformers_does(
    saved: Saved, name: str, lower: bool
) -> None:
    """The same ids and vectors as its own, under either of the file's names."""
    _, folder = saved(Pooling(WIDTH))
    keep_case(folder)
    (folder / "sentence_bert_config.json").rename(folder / name)
    change(folder / name, do_lower_case=lower)
    peer, found = SentenceTransformer(str(folder), device="cpu"), load(folder)

    ids = [tokens.token_ids for tokens in found.tokenizer([(text,) for text in CASED], 99)]
    theirs = [peer.tokenizer(text)["input_ids"] for text in CASED]
    expected = peer.encode(TEXTS, convert_to_tensor=True)

    assert ids == theirs and found.tokenizer.lower_case is lower
    assert (100 in ids[0]) is not lower  # [UNK]: the vocabulary has no capital letter
    torch.testing.assert_close(vectors(found), expected, rtol=0, atol=1e-5)


def test_a_plain_folder_lower_cases_nothing(small: Path) -> None:
    """Without modules.json sentence-transformers reads nothing of the file."""
    keep_case(small)
    change(small / "sentence_bert_config.json", do_lower_case=True)
    peer = SentenceTransformer(str(small), device="cpu")

    ours = load(small).tokenizer([(CASED[0],)], 99)[0].token_ids

    assert ours == peer.tokenizer(CASED[0])["input_ids"] and 100 in ours


@pytest.mark.parametrize("value", ["yes", 1])
def test_a_lower_case_that_is_no_boolean_is_refused(saved: Saved, value: object) -> None:
    """It would be guessed."""
    _, folder = saved(Pooling(WIDTH))
    change(folder / "sentence_bert_config.json", do_lower_case=value)

    with pytest.raises(CheckpointError, match=f"do_lower_case .* {value!r}"):
        load(folder)


PROMPTS = "config_sentence_transformers.json"
NAMED = {"query": "query: ", "document": ""}


@pytest.mark.parametrize("default", ["query", None])
@pytest.mark.parametrize("name", ["query", "document", None])
def test_a_prompt_goes_before_a_text_as_in_sentence_transformers(
    saved: Saved, name: str | None, default: str | None
) -> None:
    """By its name, or where there is none the folder's default."""
    _, folder = saved(Pooling(WIDTH))
    change(folder / PROMPTS, prompts=NAMED, default_prompt_name=default)
    peer = SentenceTransformer(str(folder), device="cpu")
    expected = peer.encode(TEXTS, prompt_name=name, convert_to_tensor=True)

    found = load(folder)

    prompt = found.prompts.find(name)
    torch.testing.assert_close(vectors(found, prompt=prompt), expected, rtol=0, atol=1e-5)


def test_a_folder_without_prompts_has_none(small: Path) -> None:
    """Not even an empty one."""
    prompts = load(small).prompts

    assert prompts.find(None) == "" and not prompts.texts
    with pytest.raises(KeyError):
        prompts.find("query")


def test_a_prompt_that_is_null_is_empty(saved: Saved) -> None:
    """As sentence-transformers reads it."""
    _, folder = saved(Pooling(WIDTH))
    change(folder / PROMPTS, prompts={"query": None})

    assert load(folder).prompts.find("query") == ""


def test_prompts_are_part_of_what_names_the_weights(saved: Saved) -> None:
    """They decide about a vector; where all are empty, they do not."""
    _, folder = saved(Pooling(WIDTH))
    plain = load(folder).digest

    change(folder / PROMPTS, prompts={"query": ""})
    empty = load(folder).digest
    change(folder / PROMPTS, prompts=NAMED)

    assert empty == plain != load(folder).digest


BAD_PROMPTS: dict[str, dict[str, Any]] = {
    "a list": {"prompts": ["query: "]},
    "a number": {"prompts": {"query": 1}},
    "no name": {"prompts": NAMED, "default_prompt_name": ["query"]},
    "no such name": {"prompts": NAMED, "default_prompt_name": "passage"},
}


@pytest.mark.parametrize("given", BAD_PROMPTS.values(), ids=BAD_PROMPTS.keys())
def test_prompts_that_cannot_be_meant_are_refused(saved: Saved, given: dict[str, Any]) -> None:
    """Before anything is encoded with them."""
    _, folder = saved(Pooling(WIDTH))
    change(folder / PROMPTS, **given)
    named = "default_prompt_name" in given
    said = "default_prompt_name names no prompt" if named else "prompts must map names to texts"

    with pytest.raises(CheckpointError, match=said):
        load(folder)


def test_a_vector_without_its_prompts_tokens_is_refused(saved: Saved) -> None:
    """By name; without prompts it makes no difference."""
    _, folder = saved(Pooling(WIDTH, include_prompt=False))
    load(folder)
    change(folder / PROMPTS, prompts=NAMED)

    with pytest.raises(CheckpointError, match="include_prompt"):
        load(folder)


MODULE = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Pooling": "sentence_transformers.models.Pooling",
    "Normalize": "sentence_transformers.models.Normalize",
    "Dense": "sentence_transformers.models.Dense",
    "Dropout": "sentence_transformers.models.Dropout",
    "WeightedLayerPooling": "sentence_transformers.models.WeightedLayerPooling",
}


def modules(folder: Path, *kinds: str, **pooling: Any) -> None:
    """Say how a folder's token vectors become one, as sentence-transformers does."""
    entries = [
        {"path": "" if index == 0 else f"{index}_{kind}", "type": MODULE[kind]}
        for index, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    change(folder / "1_Pooling" / "config.json", **pooling)


@pytest.mark.parametrize(
    ("stored", "modes"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",)),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, ("mean",)),
        ({"pooling_mode_max_tokens": True}, ("max",)),
        ({"pooling_mode_lasttoken": True}, ("last",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len",)),
        ({"pooling_mode_weightedmean_tokens": True}, ("weightedmean",)),
        ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, ("cls", "max")),
        ({"pooling_mode": "cls"}, ("cls",)),
        ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
        ({"pooling_mode": "mean"}, ("mean",)),
        ({"pooling_mode": "max"}, ("max",)),
        ({"word_embedding_dimension": 15}, ("mean",)),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}, ("mean",)),
    ],
    ids=str,
)
def test_the_pooling_is_the_folders_own(
    small: Path, stored: dict[str, Any], modes: tuple[pooling.PoolingMode, ...]
) -> None:
    """In the spelling of old and of new sentence-transformers."""
    modules(small, "Transformer", "Pooling", **stored)

    assert load(small).pooling == pooling.Pooling(modes, normalize=False)


def test_a_folder_that_normalises_is_normalised(small: Path) -> None:
    """As its third module says."""
    modules(small, "Transformer", "Pooling", "Normalize", pooling_mode="mean")

    assert load(small).pooling.normalize


def test_a_plain_folder_is_pooled_by_its_mean(small: Path) -> None:
    """Where nothing is said, nothing is normalised."""
    assert load(small).pooling == pooling.Pooling(("mean",), normalize=False)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"pooling_mode": "median"}, "median"),
        ({"pooling_mode": ["cls", "median"]}, "cls, median"),
        ({"pooling_mode": []}, "none"),
        ({"pooling_mode": ["cls", ["max"]]}, "cls, \\['max'\\]"),
        ({"pooling_mode": {"cls": 1}}, "{'cls': 1}"),
    ],
    ids=["another", "one of two", "none", "a list of lists", "an object"],
)
def test_another_pooling_is_refused_by_name(small: Path, stored: dict[str, Any], said: str) -> None:
    """A vector of another kind is not passed off as the folder's own."""
    modules(small, "Transformer", "Pooling", **stored)

    with pytest.raises(CheckpointError, match=f"pooling not supported: {said}"):
        load(small)


@pytest.mark.parametrize(
    ("kinds", "culprit"),
    [
        ("Transformer", "no Pooling"),
        ("Transformer Dense", "Dense, module 2 of 2"),
        ("Transformer Normalize Pooling", "Normalize, module 2 of 3"),
        ("Transformer Pooling Pooling", "Pooling, module 3 of 3"),
        ("Transformer WeightedLayerPooling Pooling", "WeightedLayerPooling, module 2 of 3"),
    ],
)
def test_other_modules_are_refused_by_name(small: Path, kinds: str, culprit: str) -> None:
    """A layer that is not computed is not left out in silence; the others are not blamed."""
    modules(small, *kinds.split(), pooling_mode="mean")

    with pytest.raises(CheckpointError, match=f"^modules.json: not supported: {culprit}$"):
        load(small)


@pytest.mark.parametrize(
    ("stored", "tokens"), [(None, 11), (7, 7), (512, 11)], ids=["unsaid", "fewer", "too many"]
)
def test_the_longest_sequence_is_the_folders_own_within_its_positions(
    small: Path, stored: int | None, tokens: int
) -> None:
    """What was stored, but never more than there are positions."""
    modules(small, "Transformer", "Pooling", pooling_mode="mean")
    change(small / "sentence_bert_config.json", max_seq_length=stored)

    assert load(small).max_tokens == tokens


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"type": "mine.Pooling", "path": "1_Pooling"},
            "not supported: mine.Pooling, module 2 of 2",
        ),
        ({"type": MODULE["Pooling"], "path": "../other"}, "names a folder outside"),
        ({"path": "1_Pooling"}, "an entry without type and path"),
    ],
    ids=["another's", "outside", "broken"],
)
def test_a_module_from_elsewhere_is_refused(small: Path, entry: dict[str, str], said: str) -> None:
    """Another library's class of that name may compute anything."""
    entries = [{"path": "", "type": MODULE["Transformer"]}, entry]
    (small / "modules.json").write_text(json.dumps(entries))

    with pytest.raises(CheckpointError, match=said):
        load(small)
