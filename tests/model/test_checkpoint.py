"""model/checkpoint.py"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from torch import Tensor
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

from model import checkpoint, kernels
from model.checkpoint import Model
from model.errors import CheckpointError
from model.packing import Sequence, pack
from model.pooling import pool

CPU = torch.device("cpu")
FIRST = "encoder.layer.0.attention.self.query.weight"
NORM = "embeddings.LayerNorm.bias"
SIZES = BertConfig(
    vocab_size=41,
    hidden_size=15,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=23,
    max_position_embeddings=11,
    type_vocab_size=7,
    initializer_range=0.5,
)
IDS, TYPES = [5, 3, 40, 0, 7], [0, 6, 1, 2, 5]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """A folder as a replica on a CPU loads it."""
    return checkpoint.load(folder, CPU, dtype, kernels.choose(CPU, dtype))


def encode(model: Model) -> Tensor:
    """What a model makes of a few made-up tokens, (tokens, width)."""
    packed = pack([Sequence(IDS, TYPES)], CPU)
    return model.encoder(packed).last[packed.rows(0)]


def by_transformers(bert: BertModel) -> Tensor:
    """What transformers makes of the same."""
    with torch.inference_mode():
        return bert.eval()(torch.tensor([IDS]), token_type_ids=torch.tensor([TYPES]))[0][0]


@pytest.fixture
def small(tmp_path: Path, folder: Path) -> Path:
    """A folder of a small model with random weights, written by transformers."""
    torch.manual_seed(0)
    BertModel(SIZES).save_pretrained(tmp_path)
    shutil.copy(folder / "tokenizer.json", tmp_path)
    return tmp_path


def change(path: Path, **values: Any) -> None:
    """Write other values into a JSON file; None takes one out."""
    given = {**(json.loads(path.read_text()) if path.exists() else {}), **values}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in given.items() if value is not None}))


def rewrite(folder: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of a folder's weights."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def rename(folder: Path, new: Callable[[str], str]) -> None:
    """Give the tensors of a folder's weights other names."""
    tensors = load_file(folder / "model.safetensors")
    save_file({new(name): value for name, value in tensors.items()}, folder / "model.safetensors")


def test_a_folder_of_transformers_has_the_numbers_of_transformers(small: Path) -> None:
    """Every table, layer and type is read into its place."""
    expected = by_transformers(BertModel.from_pretrained(small, attn_implementation="eager"))

    torch.testing.assert_close(encode(load(small)), expected, rtol=0, atol=1e-5)


def test_the_sizes_are_those_of_the_file(small: Path) -> None:
    """config.json fixes the encoder."""
    config = load(small).config

    assert (config.family, config.vocabulary, config.width, config.layers) == ("bert", 41, 15, 2)
    assert (config.heads, config.head, config.feed_forward) == (3, 5, 23)
    assert (config.positions, config.types, config.norm_eps) == (11, 7, 1e-12)


def test_a_model_with_a_head_is_read_without_it(small: Path) -> None:
    """A masked-language model's folder has a prefix and more tensors; the encoder is the same."""
    torch.manual_seed(1)
    masked = BertForMaskedLM(SIZES)
    masked.save_pretrained(small)
    assert any(name.startswith("bert.") for name in load_file(small / "model.safetensors"))

    torch.testing.assert_close(encode(load(small)), by_transformers(masked.bert), rtol=0, atol=1e-5)


def test_the_norms_old_names_are_known(small: Path) -> None:
    """Files made before 2019 call a LayerNorm's weight gamma and its bias beta."""
    expected = encode(load(small))

    def old(name: str) -> str:
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    rename(small, old)

    assert "embeddings.LayerNorm.gamma" in load_file(small / "model.safetensors")
    assert torch.equal(encode(load(small)), expected)


def test_tensors_that_encode_nothing_are_passed_over(small: Path) -> None:
    """A pooler and stored position ids are in many files."""
    expected = encode(load(small))

    rewrite(small, lambda found: found.update({"embeddings.position_ids": torch.arange(11)}))

    assert "pooler.dense.weight" in load_file(small / "model.safetensors")
    assert torch.equal(encode(load(small)), expected)


def test_half_precision_files_are_read_in_the_number_format_asked_for(small: Path) -> None:
    """The format of the file does not decide that of the arithmetic."""
    rewrite(small, lambda found: found.update({k: v.bfloat16() for k, v in found.items()}))

    assert encode(load(small)).dtype == torch.float32
    assert encode(load(small, torch.bfloat16)).dtype == torch.bfloat16


def test_loaded_weights_are_the_models_own(small: Path) -> None:
    """What happens to the file afterwards is nothing to the model."""
    model = load(small)
    expected = encode(model)

    path = small / "model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"\xff" * size)

    assert torch.equal(encode(model), expected)


FAULTS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], str]] = {
    "missing": (lambda found: found.pop(FIRST), f"missing {FIRST}"),
    "extra": (lambda found: found.update({"extra.weight": torch.ones(3)}), "unexpected extra.wei"),
    "misshapen": (
        lambda found: found.update({FIRST: torch.ones(15, 13)}),
        f"{FIRST} is (15, 13), not (15, 15)",
    ),
    "NaN": (lambda found: found[NORM].fill_(torch.nan), f"{NORM} holds NaN or infinity"),
    "infinite": (lambda found: found[FIRST][7].fill_(torch.inf), f"{FIRST} holds NaN or infinity"),
    "a layer too many": (
        lambda found: found.update({FIRST.replace("0", "2"): torch.ones(15, 15)}),
        f"unexpected {FIRST.replace('0', '2')}",
    ),
}


@pytest.mark.parametrize(("edit", "said"), FAULTS.values(), ids=FAULTS.keys())
def test_a_faulty_tensor_is_named(
    small: Path, edit: Callable[[dict[str, Tensor]], Any], said: str
) -> None:
    """Missing, extra, misshapen or not finite: the refusal says which and what."""
    rewrite(small, edit)

    with pytest.raises(CheckpointError) as refused:
        load(small)

    assert said in str(refused.value)


def test_all_faulty_tensors_are_named_at_once(small: Path) -> None:
    """Nobody has to load a folder five times to learn five faults."""

    def edit(found: dict[str, Tensor]) -> None:
        FAULTS["missing"][0](found)
        FAULTS["extra"][0](found)
        FAULTS["NaN"][0](found)

    rewrite(small, edit)

    with pytest.raises(CheckpointError) as refused:
        load(small)

    assert all(FAULTS[fault][1] in str(refused.value) for fault in ("missing", "extra", "NaN"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_type", "roberta"),
        ("hidden_act", "relu"),
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("add_cross_attention", True),
    ],
)
def test_what_the_encoder_does_not_compute_is_refused_by_name(
    small: Path, name: str, value: object
) -> None:
    """Nothing is guessed, and nothing silently computed otherwise."""
    change(small / "config.json", **{name: value})

    with pytest.raises(CheckpointError, match=f"not supported: {name} {value!r}"):
        load(small)


def test_a_config_without_a_size_is_refused_by_name(small: Path) -> None:
    """No size has a default."""
    change(small / "config.json", hidden_size=None)

    with pytest.raises(CheckpointError, match=r"config\.json lacks 'hidden_size'"):
        load(small)


def test_a_config_whose_sizes_do_not_fit_is_refused(small: Path) -> None:
    """With the two numbers."""
    change(small / "config.json", num_attention_heads=2)

    with pytest.raises(CheckpointError, match=r"heads \(2\) must divide width \(15\)"):
        load(small)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(small: Path, name: str) -> None:
    """All three are needed."""
    (small / name).unlink()

    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        load(small)


def test_weights_in_a_pickle_are_not_read(small: Path) -> None:
    """A pickle can run code when it is opened, so it is as good as missing."""
    torch.save(load_file(small / "model.safetensors"), small / "pytorch_model.bin")
    (small / "model.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors"):
        load(small)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("config.json", "config.json is not JSON"),
        ("tokenizer.json", "tokenizer.json cannot be read"),
        ("model.safetensors", "model.safetensors is not a safetensors file"),
    ],
)
def test_a_broken_file_is_named(small: Path, name: str, said: str) -> None:
    """Whatever the library makes of it, the refusal is ours."""
    (small / name).write_bytes(b"not what it says")

    with pytest.raises(CheckpointError, match=said):
        load(small)


def test_the_bundled_weights_have_the_digest_their_stored_numbers_go_by(model: Model) -> None:
    """It names weights, config and tokenizer together."""
    assert model.digest == "sha256:d101471598ac"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_change_to_any_of_the_three_files_changes_the_digest(small: Path, name: str) -> None:
    """To one byte of it."""
    before = checkpoint.digest(small)

    given = bytearray((small / name).read_bytes())
    given[-3] ^= 1
    (small / name).write_bytes(given)

    assert checkpoint.digest(small) != before


def test_a_copy_has_the_same_digest(small: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The folder's own name, and what else lies in it, is nothing to it."""
    other = tmp_path_factory.mktemp("copy")
    shutil.copytree(small, other, dirs_exist_ok=True)
    (other / "README.md").write_text("another")

    assert checkpoint.digest(other) == checkpoint.digest(small)


MODULE = {
    "Transformer": "sentence_transformers.models.Transformer",
    "Pooling": "sentence_transformers.models.Pooling",
    "Normalize": "sentence_transformers.models.Normalize",
    "Dense": "sentence_transformers.models.Dense",
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
    ("pooling", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "max"}, "max"),
    ],
    ids=str,
)
def test_the_pooling_is_the_folders_own(small: Path, pooling: dict[str, Any], mode: str) -> None:
    """In the spelling of old and of new sentence-transformers."""
    modules(small, "Transformer", "Pooling", **pooling)

    assert load(small).pooling == checkpoint.Pooling(mode, normalize=False)


def test_a_folder_that_normalises_is_normalised(small: Path) -> None:
    """As its third module says."""
    modules(small, "Transformer", "Pooling", "Normalize", pooling_mode="mean")

    assert load(small).pooling.normalize


def test_a_plain_folder_is_pooled_by_its_mean(small: Path) -> None:
    """Where nothing is said, nothing is normalised."""
    assert load(small).pooling == checkpoint.Pooling("mean", normalize=False)


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "pooling_mode_mean_sqrt_len_tokens"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls, max"),
        ({"word_embedding_dimension": 15}, "none"),
    ],
    ids=["square root", "weighted", "two at once", "none"],
)
def test_another_pooling_is_refused_by_name(
    small: Path, pooling: dict[str, Any], said: str
) -> None:
    """A vector of another kind is not passed off as the folder's own."""
    modules(small, "Transformer", "Pooling", **pooling)

    with pytest.raises(CheckpointError, match=f"pooling not supported: {said}"):
        load(small)


@pytest.mark.parametrize(
    "kinds", [["Transformer", "Pooling", "Dense"], ["Transformer"], ["Transformer", "Dense"]]
)
def test_other_modules_are_refused_by_name(small: Path, kinds: list[str]) -> None:
    """A layer that is not computed is not left out in silence."""
    modules(small, *kinds, pooling_mode="mean")

    with pytest.raises(CheckpointError, match=f"not supported: {', '.join(kinds)}"):
        load(small)


@pytest.mark.parametrize(
    ("stored", "tokens"), [(None, 11), (7, 7), (512, 11)], ids=["unsaid", "fewer", "too many"]
)
def test_the_longest_sequence_is_the_folders_own_within_its_positions(
    small: Path, stored: int | None, tokens: int
) -> None:
    """What was stored, but never more than there are positions."""
    change(small / "sentence_bert_config.json", max_seq_length=stored)

    assert load(small).max_tokens == tokens


def test_a_folder_of_sentence_transformers_has_its_vectors(tmp_path: Path, folder: Path) -> None:
    """Saved by the newest version with another pooling and length, it answers the same."""
    torch.manual_seed(2)
    bert, saved = tmp_path / "bert", tmp_path / "saved"
    BertModel(BertConfig(**{**SIZES.to_dict(), "vocab_size": 30522})).save_pretrained(bert)
    AutoTokenizer.from_pretrained(folder).save_pretrained(bert)
    parts = [Transformer(str(bert)), Pooling(15, pooling_mode="max"), Normalize()]
    peer = SentenceTransformer(modules=parts, device="cpu")
    peer.max_seq_length = 7
    peer.save_pretrained(str(saved), create_model_card=False)
    text = "A dog ate the food because it was hungry"

    model = load(saved)
    (tokens,) = model.tokenizer([(text,)], model.max_tokens, "right")
    packed = pack([Sequence(tokens.token_ids)], CPU)
    vector = pool(model.encoder(packed).last[packed.rows(0)], model.pooling)

    assert (model.max_tokens, model.pooling) == (7, checkpoint.Pooling("max", normalize=True))
    torch.testing.assert_close(vector, peer.encode(text, convert_to_tensor=True), rtol=0, atol=1e-5)
