"""model/loading/checkpoint.py"""

import json
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Library
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel

from model import kernels
from model.config import TRANSFORMER_BASE
from model.errors import CheckpointError
from model.loading import assembly, checkpoint, files
from model.loading.checkpoint import Model
from model.packing import Sequence, pack_sequences
from tests.model.loads import CPU, load
from tests.model.small_tokenizer import SMALL_TOKENIZER, save_small_tokenizer

ROOT = Path(__file__).parent.parent.parent.parent
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


def encode(model: Model) -> Tensor:
    """What a model makes of a few made-up tokens, (tokens, width)."""
    packed = pack_sequences([Sequence(IDS, TYPES)], CPU)
    return model.encoder(packed).last[packed.rows(0)]


def by_transformers(bert: BertModel) -> Tensor:
    """What transformers makes of the same."""
    with torch.inference_mode():
        return bert.eval()(torch.tensor([IDS]), token_type_ids=torch.tensor([TYPES]))[0][0]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A folder of a small model with random weights, written by transformers."""
    torch.manual_seed(0)
    BertModel(SIZES).save_pretrained(tmp_path)
    save_small_tokenizer(tmp_path)
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
    assert (config.heads, config.head_dim, config.feed_forward) == (3, 5, 23)
    assert (config.positions, config.max_tokens) == ("learned", 11)
    assert (config.types, config.norm_eps) == (7, 1e-12)


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
    assert encode(load(small, torch.float16)).dtype == torch.float16


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
    """One load of a folder reports all five faults."""

    def edit(found: dict[str, Tensor]) -> None:
        FAULTS["missing"][0](found)
        FAULTS["extra"][0](found)
        FAULTS["NaN"][0](found)

    rewrite(small, edit)

    with pytest.raises(CheckpointError) as refused:
        load(small)

    assert all(FAULTS[fault][1] in str(refused.value) for fault in ("missing", "extra", "NaN"))


@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("_orig_mod.{}", "torch.compile"),
        ("module.{}", "DataParallel"),
        ("module._orig_mod.{}", "torch.compile"),
        ("_fsdp_wrapped_module.{}", "FullyShardedDataParallel"),
        ("bert._orig_mod.{}", "torch.compile"),
    ],
)
def test_the_names_of_a_wrapped_model_are_refused_in_one_line(
    small: Path, place: str, what: str
) -> None:
    """Not by each name that is missing and each that is there instead."""

    def edit(found: dict[str, Tensor]) -> None:
        for name in [*found]:
            found[place.format(name)] = found.pop(name)

    rewrite(small, edit)

    with pytest.raises(CheckpointError, match=f"as {what} saves them: save the model") as refused:
        load(small)
    assert len(str(refused.value)) < 150


def test_one_layer_that_was_compiled_is_refused_likewise(small: Path) -> None:
    """Its names have the wrapper's in their middle."""
    rewrite(small, lambda found: found.update({f"_orig_mod.{FIRST}": found.pop(FIRST)}))

    with pytest.raises(CheckpointError, match=r'model.safetensors: names have "_orig_mod."'):
        load(small)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_act", "relu6"),
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


def test_an_unknown_family_is_refused_by_name(small: Path) -> None:
    """With the families that are known."""
    change(small / "config.json", model_type="gpt2")

    with pytest.raises(CheckpointError, match="model_type 'gpt2' is not supported; .* bert, "):
        load(small)


def test_a_size_that_is_left_out_is_the_familys_own_or_refused_by_name(small: Path) -> None:
    """768 of BERT, which these tensors do not have; code that transformers lacks has none."""
    change(small / "config.json", hidden_size=None)
    with pytest.raises(
        CheckpointError, match=r"word_embeddings.weight is \(41, 15\), not \(41, 768"
    ):
        load(small)

    change(small / "config.json", model_type="new")
    with pytest.raises(CheckpointError, match=r"config\.json lacks 'hidden_size'"):
        load(small)


def test_a_config_whose_sizes_do_not_fit_is_refused(small: Path) -> None:
    """With the two numbers."""
    change(small / "config.json", num_attention_heads=2)

    with pytest.raises(CheckpointError, match=r"heads \(2\) must divide width \(15\)"):
        load(small)


@pytest.mark.parametrize("size", [0, -3, "3", 3.0, True, None])
def test_a_size_that_is_no_positive_whole_number_is_refused(small: Path, size: object) -> None:
    """With the value, before anything is read from the weights."""
    given = json.loads((small / "config.json").read_text()) | {"num_attention_heads": size}
    (small / "config.json").write_text(json.dumps(given))

    with pytest.raises(CheckpointError, match="heads must be a positive whole number"):
        load(small)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"type_vocab_size": "2"}, "types must be a whole number, not '2'"),
        ({"layer_norm_eps": "1e-12"}, "norm_eps must be a finite number, not '1e-12'"),
        ({"layer_norm_eps": float("nan")}, "norm_eps must be a finite number, not nan"),
    ],
    ids=["types", "a text as eps", "no number as eps"],
)
def test_a_number_of_another_kind_is_refused(
    small: Path, values: dict[str, Any], said: str
) -> None:
    """When it is read, and not where it is first used."""
    change(small / "config.json", **values)

    with pytest.raises(CheckpointError, match=said):
        load(small)


def test_a_config_that_is_no_object_is_refused(small: Path) -> None:
    """JSON, but not a config."""
    (small / "config.json").write_text("[]")

    with pytest.raises(CheckpointError, match=r"config\.json is not a JSON object"):
        load(small)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(small: Path, name: str) -> None:
    """All three are needed."""
    (small / name).unlink()

    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        load(small)


def test_an_adapter_next_to_the_weights_is_refused(small: Path) -> None:
    """That library would add it to them; the refusal says how it is served."""
    (small / "adapter_config.json").write_text('{"peft_type": "LORA"}')

    for read in (load, checkpoint.read_sizes):
        with pytest.raises(CheckpointError, match=r"adapter_config\.json .* --adapter NAME=FOLDER"):
            read(small)


def test_weights_in_a_pickle_are_not_read(small: Path) -> None:
    """A pickle can run code when it is opened; the refusal says how to convert it."""
    torch.save(load_file(small / "model.safetensors"), small / "pytorch_model.bin")
    (small / "model.safetensors").unlink()

    with pytest.raises(CheckpointError, match="is a pickle, .* `headlight convert .* OUT` makes"):
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


@pytest.fixture
def sharded(small: Path) -> Path:
    """The small model in three files and their index."""
    bert = BertModel.from_pretrained(small)
    (small / "model.safetensors").unlink()
    bert.save_pretrained(small, max_shard_size="8KB")
    return small


def test_shards_load_as_one_file_does(small: Path, request: pytest.FixtureRequest) -> None:
    """Wherever the cuts are."""
    expected = encode(load(small))

    folder: Path = request.getfixturevalue("sharded")

    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert torch.equal(encode(load(folder)), expected)


def test_an_index_left_beside_one_file_is_not_followed(sharded: Path) -> None:
    """As in transformers, which takes the one file."""
    changed = BertModel.from_pretrained(sharded)
    changed.embeddings.word_embeddings.weight.data.mul_(2)
    save_file(changed.state_dict(), sharded / files.WEIGHTS, metadata={"format": "pt"})

    torch.testing.assert_close(
        encode(load(sharded)),
        by_transformers(BertModel.from_pretrained(sharded)),
        rtol=0,
        atol=1e-5,
    )


def test_a_missing_shard_is_named(sharded: Path) -> None:
    """The index says which there should be."""
    (sharded / "model-00002-of-00003.safetensors").unlink()

    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00003\.safetensors$"):
        load(sharded)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {FIRST: "../elsewhere.safetensors"}}, "names files outside the folder"),
        ({}, "has no weight_map"),
        ({"weight_map": {FIRST: 1}}, "has no weight_map"),
    ],
    ids=["outside", "empty", "a number"],
)
def test_an_index_that_cannot_be_followed_is_refused(
    sharded: Path, index: dict[str, Any], said: str
) -> None:
    """Nothing outside the folder is opened."""
    (sharded / files.INDEX).write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match=said):
        load(sharded)


def test_a_config_nested_without_end_is_refused(small: Path) -> None:
    """As any file that is not JSON."""
    (small / "config.json").write_text("[" * 200_000)

    with pytest.raises(CheckpointError, match="config.json is not JSON"):
        load(small)


def test_code_that_a_folder_brings_is_never_run(small: Path) -> None:
    """The key that names it is passed over, and no switch exists that would not."""
    expected = encode(load(small))
    change(small / "config.json", auto_map={"AutoModel": "modeling.Trap"})
    (small / "modeling.py").write_text("raise SystemExit('run')")

    sources = [path for part in ("model", "service") for path in (ROOT / part).rglob("*.py")]

    assert torch.equal(encode(load(small)), expected)
    assert not [path for path in sources if "remote_code" in path.read_text()]


def test_nothing_of_a_linear_is_held_but_what_the_kernels_made_of_it(small: Path) -> None:
    """A plain copy next to the packed one would double the memory of a large model."""
    held = weakref.WeakSet[Tensor]()

    class Watched(kernels.PackedLinear):
        def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
            held.add(weight)
            super().__init__(weight, bias)

    ways = replace(kernels.PLAIN, linear=Watched)
    model = checkpoint.load_checkpoint(small, CPU, torch.float32, ways)

    assert model.encoder.layers and len(held) == 0


def preset(folder: Path, **sizes: Any) -> Model:
    """The source texts' encoder, small unless said otherwise."""
    few = {"width": 12, "embedding_width": 12, "heads": 3, "layers": 2, "feed_forward": 19}
    config = replace(TRANSFORMER_BASE, **{**few, **sizes})
    return checkpoint.make_untrained(config, folder, CPU, torch.float32, kernels.PLAIN)


def test_a_preset_is_the_encoder_of_the_source_text(folder: Path) -> None:
    """Six layers of eight heads over x = word + PE(position), against torch's own layers."""
    model = checkpoint.make_untrained(TRANSFORMER_BASE, folder, CPU, torch.float32, kernels.PLAIN)
    drawn = assembly.draw_tensors(TRANSFORMER_BASE)
    ids = torch.arange(2000, 2011)
    place, channel = torch.arange(11.0)[:, None], torch.arange(0, 512, 2)
    angles = place / 10_000 ** (channel / 512)
    x = drawn["word.weight"][ids] + torch.stack((angles.sin(), angles.cos()), -1).flatten(1)

    for i in range(6):
        x = by_torch(drawn, f"layers.{i}", x)
    packed = model.encoder.pack([Sequence(ids.tolist())])

    ours = model.encoder(packed).last[packed.rows(0)]
    torch.testing.assert_close(ours, x, rtol=0, atol=1e-5)


def by_torch(drawn: dict[str, Tensor], own: str, x: Tensor) -> Tensor:
    """One layer by torch.nn.TransformerEncoderLayer."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0).eval()
    parts = [f"{own}.{name}" for name in ("query", "key", "value")]
    places = {
        "self_attn.out_proj": "output",
        "linear1": "up",
        "linear2": "down",
        "norm1": "attention_norm",
        "norm2": "feed_forward_norm",
    }
    state = {
        f"{theirs}.{kind}": drawn[f"{own}.{ours}.{kind}"]
        for theirs, ours in places.items()
        for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        state[f"self_attn.in_proj_{kind}"] = torch.cat([drawn[f"{part}.{kind}"] for part in parts])
    layer.load_state_dict(state)
    with torch.inference_mode():
        return layer(x[:, None])[:, 0]


def test_a_preset_is_untrained_and_says_so(model: Model, folder: Path) -> None:
    """A checkpoint is not."""
    assert (preset(folder).trained, model.trained) == (False, True)


def test_a_preset_has_the_same_weights_every_time(folder: Path) -> None:
    """And its digest is of them, of the sizes and of the tokenizer."""
    first, again = preset(folder), preset(folder)

    assert torch.equal(encode(first), encode(again))
    assert first.digest == again.digest
    assert preset(folder, norm_eps=1e-6).digest != first.digest
    assert preset(folder, layers=3).digest != first.digest


def test_a_presets_tokenizer_is_in_its_digest(folder: Path, tmp_path: Path) -> None:
    """Other ids are other answers."""
    other = tmp_path / "tokenizer.json"
    other.write_bytes((folder / "tokenizer.json").read_bytes() + b" ")

    assert preset(tmp_path).digest != preset(folder).digest


def test_the_bundled_weights_have_the_digest_their_stored_numbers_go_by(model: Model) -> None:
    """It names all that decides about an answer together."""
    assert model.digest == "sha256:5fc648cb18e4"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_change_to_any_of_the_three_files_changes_the_digest(small: Path, name: str) -> None:
    """To one byte of it."""
    before = load(small).digest

    if name == "model.safetensors":
        rewrite(small, lambda found: found[NORM][0].add_(1))
    else:
        (small / name).write_bytes((small / name).read_bytes() + b" ")

    assert load(small).digest != before


Edit = Callable[[Library], object]


def framed(pair: str, *marks: tuple[str, int]) -> Edit:
    """Put a frame around the texts of a pair."""

    def edit(library: Library) -> None:
        library.post_processor = TemplateProcessing("$A", pair, marks)

    return edit


REACHES: dict[str, tuple[Edit, str]] = {
    "an added token": (
        lambda library: library.add_tokens(["w41"]),
        "id 41, and the embedding table has 41 rows",
    ),
    "a frame's token": (framed("$A [X] $B", ("[X]", 43)), "id 43, and the embedding table"),
    "a frame's type": (
        framed("$A $B:7 [SEP]:7", ("[SEP]", 2)),
        "token type 7, and the table of types has 7 rows",
    ),
}


@pytest.mark.parametrize(("edit", "said"), REACHES.values(), ids=REACHES)
def test_a_tokenizer_that_reaches_beyond_a_table_is_refused(
    small: Path, edit: Edit, said: str
) -> None:
    """With the highest id and the rows, whether or not any text has it."""
    library = Library.from_file(str(SMALL_TOKENIZER))
    edit(library)
    library.save(str(small / "tokenizer.json"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    change(small / "tokenizer_config.json", model_input_names=names)

    with pytest.raises(CheckpointError) as refused:
        load(small)

    assert str(refused.value).startswith(f"tokenizer.json reaches {said}")
    assert "\n" not in str(refused.value)


def test_a_preset_refuses_a_tokenizer_beyond_its_table(folder: Path) -> None:
    """As a checkpoint does."""
    with pytest.raises(CheckpointError, match="reaches id 30521, .* has 41 rows"):
        preset(folder, vocabulary=41)


def test_a_copy_has_the_same_digest(small: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The folder's own name, and what else lies in it, is nothing to it."""
    other = tmp_path_factory.mktemp("copy")
    shutil.copytree(small, other, dirs_exist_ok=True)
    (other / "README.md").write_text("another")

    assert load(other).digest == load(small).digest
