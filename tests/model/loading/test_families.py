"""Every family against transformers, eager, float32, random weights; `prove` runs all cells."""

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from model import families, kernels
from model.attention.attention import TILE_QUERIES
from model.config import LINEAR_NAMES, EncoderConfig
from model.errors import CheckpointError
from model.families import fields
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.maps import maps
from model.maps.tiles import MapReader
from model.packing import Sequence
from service.proof.certificate import compare_vectors
from tests.model.loads import CPU, load
from tests.model.rounded import load_rounded
from tests.model.small_tokenizer import save_small_tokenizer

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "models.md"
WINDOW = 8  # of ModernBERT's local layers, to either side
VOCABULARY, MOST = fields.TINY_SIZES["vocab_size"], fields.TINY_SIZES["max_position_embeddings"]

Loaded = Callable[[str], tuple[PreTrainedModel, Model]]
Folders = dict[str, Path]

# what transformers makes of each family that it knows
FAMILIES = {family.name: family.tiny_model for family in families.FAMILIES if family.tiny_model}
NOMIC_HUB = {  # as the hub's own code spells it
    "model_type": "nomic_bert",
    "vocab_size": VOCABULARY,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 80,
    "n_positions": MOST,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "type_vocab_size": 3,
    "activation_function": "swiglu",
}
LENGTHS = (1, 2, WINDOW - 1, WINDOW, WINDOW + 1, MOST)
BATCH = (1, 2, 5, 9, 9, 23, MOST)


def described(family: str, **choices: object) -> PreTrainedConfig:
    """The config of transformers' model."""
    tiny = FAMILIES[family]
    config: PreTrainedConfig = getattr(transformers, f"{tiny.class_prefix}Config")(
        **{**tiny.sizes, **choices}, attn_implementation="eager"
    )
    return config


def theirs(family: str, kind: str = "Model", **choices: object) -> PreTrainedModel:
    """transformers' model with random weights, every bias and norm included.

    Args:
        kind: how the name of its class ends.
    """
    config = described(family, **choices)
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, FAMILIES[family].class_prefix + kind)(
        config
    ).eval()
    around = 0 if families.read_config_and_family(config.to_dict())[0].norm_from_one else 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")  # so that states are
            parameter.copy_(torch.randn_like(parameter) * 0.1 + norm * around)
    return model


def saved(model: PreTrainedModel, folder: Path) -> Model:
    """The model as we load it from where transformers saved it."""
    model.save_pretrained(folder)
    save_small_tokenizer(folder)
    return load(folder)


@pytest.fixture(scope="module")
def folders() -> Folders:
    """The folders that models were saved to, by family."""
    return {}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, folders: Folders) -> Loaded:
    """A family's model as transformers runs it, and as we load it from the saved folder."""
    cache: dict[str, tuple[PreTrainedModel, Model]] = {}

    def load(family: str) -> tuple[PreTrainedModel, Model]:
        if family not in cache:
            model, folder = theirs(family), tmp_path_factory.mktemp(family)
            folders[family] = folder
            cache[family] = model, saved(model, folder)
        return cache[family]

    return load


def inputs(
    family: str, kind: str, length: int, model: PreTrainedModel
) -> tuple[Sequence, dict[str, Tensor]]:
    """One random sequence for us, and the same for transformers."""
    random = torch.Generator().manual_seed(length)
    # ids from 0: padding ids in the middle of a sequence are an awkward case of RoBERTa's
    ids = torch.randint(0, VOCABULARY, (1, length), generator=random)
    if kind == "embeddings":
        vectors = model.get_input_embeddings()(ids).detach()
        return Sequence(embeddings=vectors[0]), {"inputs_embeds": vectors}
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    types = None
    if kind == "pairs":
        most = FAMILIES[family].sizes["type_vocab_size"]
        drawn = torch.randint(0, most, (1, length), generator=random)
        given["token_type_ids"], types = drawn, drawn[0].tolist()
    return Sequence(ids[0].tolist(), types), given


def cells() -> list[Any]:
    """Family, kind of input and length; outside `prove` one of the hardest for each family."""
    rows = []
    for family in FAMILIES:
        typed = "type_vocab_size" in FAMILIES[family].sizes
        for kind in ("ids", "embeddings", *(["pairs"] if typed else [])):
            for length in LENGTHS:
                quick = length == MOST and kind == ("pairs" if typed else "ids")
                marks = () if quick else (pytest.mark.prove,)
                rows.append(
                    pytest.param(family, kind, length, marks=marks, id=f"{family}-{kind}-{length}")
                )
    return rows


def furthest(reference: PreTrainedModel, ours: Model, family: str, kind: str, length: int) -> float:
    """Largest difference of any hidden state or map, the sequence between others of its batch."""
    sequence, given = inputs(family, kind, length, reference)
    company = [inputs(family, "ids", other, reference)[0] for other in (length, 3, 17)]
    layers = range(ours.config.layers)
    with torch.inference_mode():
        expected = reference(**given, output_hidden_states=True, output_attentions=True)
        packed = ours.encoder.pack([company[0], sequence, *company[1:]])
        found = ours.encoder(packed, hidden={*layers, len(layers)}, traces=set(layers))
        rows, heads = packed.rows(1), range(ours.config.heads)
        pairs = [
            (found.hidden[i][rows], state[0]) for i, state in enumerate(expected.hidden_states)
        ]
        shown = [maps.full_maps(MapReader(found.traces[i], rows, heads)) for i in layers]
        pairs += [(mine, its[0]) for mine, its in zip(shown, expected.attentions, strict=True)]
    assert len(pairs) == 2 * len(layers) + 1
    return max(float((mine - its).abs().max()) for mine, its in pairs)


@pytest.mark.parametrize(("family", "kind", "length"), cells())
def test_a_family_computes_what_transformers_computes(
    loaded: Loaded, family: str, kind: str, length: int
) -> None:
    """All hidden states and all attention maps, the sequence between others of its batch."""
    assert furthest(*loaded(family), family, kind, length) <= 1e-5


SIZES = [(1, 80), (3, 10), (2, 24), (2, 40)]  # heads, and channels of each


@pytest.mark.parametrize(("heads", "size"), SIZES)
@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_one_layer_of_heads_of_any_size_is_that_of_transformers(
    tmp_path: Path, family: str, heads: int, size: int
) -> None:
    """Its states and maps; where a kernel's last channels or an axis of one could go wrong."""
    sizes = {"hidden_size": heads * size, "num_attention_heads": heads, "num_hidden_layers": 1}
    reference = theirs(family, **sizes)

    ours = saved(reference, tmp_path)

    assert furthest(reference, ours, family, "ids", MOST) <= 1e-5


def activated() -> list[Any]:
    """Family and activation: BERT with every name, the others with one arithmetic, or each."""
    few = ("gelu", "gelu_new", "relu", "silu")
    rows = [pytest.param("bert", name) for name in fields.ACTIVATIONS]
    for turn, family in enumerate(family for family in FAMILIES if family != "bert"):
        for place, name in enumerate(few):
            marks = () if turn % len(few) == place else pytest.mark.prove
            rows.append(pytest.param(family, name, marks=marks))
    return rows


@pytest.mark.parametrize(("family", "name"), activated())
def test_every_activation_is_legal_in_every_family(tmp_path: Path, family: str, name: str) -> None:
    """By transformers' name for it, and exact; of BERT alone and in a batch the same bits."""
    reference = theirs(family, **{FAMILIES[family].activation_key: name})
    ours = saved(reference, tmp_path)

    assert furthest(reference, ours, family, "ids", MOST) <= 1e-5
    some = [inputs(family, "ids", n, reference)[0] for n in BATCH]
    assert family != "bert" or moved(ours, some) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_an_activation_of_another_arithmetic_is_refused(family: str) -> None:
    """By its key and its name, with the names that are known."""
    key, config = FAMILIES[family].activation_key, described(family).to_dict()

    for name in ("gelu_10", "quick_gelu", "prelu", ["gelu"], None):
        with pytest.raises(CheckpointError) as refused:
            families.read_config_and_family({**config, key: name})

        assert str(refused.value).startswith(f"not supported: {key} {name!r}; these are: gelu, ")


@pytest.mark.parametrize(("key", "name"), [("activation_function", "gelu"), ("hidden_act", "gelu")])
def test_nomics_own_spelling_has_the_activation_of_its_code(key: str, name: str) -> None:
    """Which is swiglu, and hidden_act is nothing to it."""
    assert families.read_config_and_family(NOMIC_HUB)[0].activation == "silu"

    with pytest.raises(CheckpointError, match=f"not supported: {key} {name!r}"):
        families.read_config_and_family({**NOMIC_HUB, key: name})


def test_a_table_of_tasks_that_is_not_read_may_be_there(tmp_path: Path) -> None:
    """Of an ERNIE without them, as transformers passes over it; one that has them needs it."""
    reference = theirs("ernie", use_task_id=True)
    reference.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    stored = json.loads(config.read_text())
    config.write_text(json.dumps(stored | {"use_task_id": False}))
    peer = type(reference).from_pretrained(tmp_path, attn_implementation="eager").eval()
    save_small_tokenizer(tmp_path)
    ours = checkpoint.load_checkpoint(tmp_path, CPU, torch.float32, kernels.PLAIN)

    assert not ours.config.kinds
    assert max(furthest(peer, ours, "ernie", "ids", length) for length in LENGTHS) <= 1e-5
    config.write_text(json.dumps(stored | {"task_type_vocab_size": 5}))
    with pytest.raises(CheckpointError, match="task_type_embeddings.weight is"):
        checkpoint.load_checkpoint(tmp_path, CPU, torch.float32, kernels.PLAIN)


def moved(model: Model, sequences: list[Sequence]) -> int:
    """How many answers of random batches differ in any bit from the sequence alone."""
    count, encoder = 0, model.encoder
    with torch.inference_mode():
        alone = [encoder(encoder.pack([one])) for one in sequences]
        for seed in range(2):
            order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(seed))
            encoded = encoder(encoder.pack([sequences[i] for i in order]))
            for place, i in enumerate(order.tolist()):
                together = encoded.last[encoded.packed.rows(place)]
                count += not torch.equal(together, alone[i].last[alone[i].packed.rows(0)])
    return count


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_gives_the_same_bits_alone_and_in_any_batch(loaded: Loaded, family: str) -> None:
    """At every place of random batches."""
    reference, ours = loaded(family)

    assert moved(ours, [inputs(family, "ids", n, reference)[0] for n in BATCH]) == 0


def halves() -> list[Any]:
    """Family and number format: outside `prove` each family in one of the two."""
    return [
        pytest.param(family, dtype, marks=() if turn % 2 == place else pytest.mark.prove)
        for turn, family in enumerate(FAMILIES)
        for place, dtype in enumerate((torch.bfloat16, torch.float16))
    ]


@pytest.fixture(scope="module")
def halved(loaded: Loaded, folders: Folders) -> Callable[[str, torch.dtype], Model]:
    """A family's model in half precision."""

    def load_half(family: str, dtype: torch.dtype) -> Model:
        loaded(family)
        return load(folders[family], dtype)

    return cache(load_half)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((WINDOW + 1, 23, MOST), id="few"),
        pytest.param(range(1, MOST + 1), id="all", marks=pytest.mark.prove),
    ],
)
@pytest.mark.parametrize(("family", "dtype"), halves())
def test_half_precision_errs_no_more_than_transformers_does(
    loaded: Loaded,
    halved: Callable[[str, torch.dtype], Model],
    family: str,
    dtype: torch.dtype,
    lengths: Iterable[int],
) -> None:
    """Against its own float32, within 1.5 times what transformers loses against its own."""
    reference, ours = loaded(family)
    half = halved(family, dtype)
    theirs_half = copy.deepcopy(reference).to(dtype)
    ours_lost, theirs_lost = [], []

    for length in lengths:
        sequence, given = inputs(family, "ids", length, reference)
        with torch.inference_mode():
            whole, cut = (m.encoder(m.encoder.pack([sequence])).last for m in (ours, half))
            exact, rough = (m(**given).last_hidden_state[0] for m in (reference, theirs_half))
        ours_lost.append((whole - cut)[:length].flatten())
        theirs_lost.append((exact - rough).flatten())

    lost, limit = torch.cat(ours_lost), torch.cat(theirs_lost)
    assert lost.square().mean().sqrt() <= 1.5 * limit.square().mean().sqrt()
    assert lost.abs().max() <= 1.5 * limit.abs().max()


@pytest.mark.parametrize(("family", "dtype"), halves())
def test_half_precision_gives_the_same_bits_in_any_batch(
    loaded: Loaded, halved: Callable[[str, torch.dtype], Model], family: str, dtype: torch.dtype
) -> None:
    """The promise holds for every number format."""
    reference, half = loaded(family)[0], halved(family, dtype)

    assert moved(half, [inputs(family, "ids", n, reference)[0] for n in BATCH]) == 0


def test_alberts_layers_are_one_in_memory(loaded: Loaded) -> None:
    """Four passes through one layer's weights."""
    layers = loaded("albert")[1].encoder.layers

    assert len(layers) == 4 and len({*map(id, layers)}) == 1


def test_a_window_is_exactly_as_wide_as_they_say(loaded: Loaded) -> None:
    """In a local layer a token sees WINDOW to either side, and not one more."""
    reference, ours = loaded("modernbert")
    sequence, _ = inputs("modernbert", "ids", MOST, reference)

    with torch.inference_mode():
        encoded = ours.encoder(ours.encoder.pack([sequence]), traces={1})
        probabilities = maps.full_maps(MapReader(encoded.traces[1], slice(0, MOST), [0]))[0]

    assert probabilities[20, 20 - WINDOW] > 0 and probabilities[20, 20 + WINDOW] > 0
    assert probabilities[20, 19 - WINDOW] == 0 and probabilities[20, 21 + WINDOW] == 0
    assert math.isclose(float(probabilities[20].sum()), 1, abs_tol=1e-5)


@pytest.mark.parametrize("window", [WINDOW, TILE_QUERIES // 2 + 3, TILE_QUERIES + 3])
def test_a_window_looks_across_the_edges_of_tiles(tmp_path: Path, window: int) -> None:
    """Queries come a tile at a time: one short of it, all of it, one more, and three of them."""
    lengths = (TILE_QUERIES - 1, TILE_QUERIES, TILE_QUERIES + 1, 3 * TILE_QUERIES + 5)
    sizes = {"max_position_embeddings": lengths[-1], "local_attention": 2 * window}
    reference = theirs("modernbert", **sizes)
    ours = saved(reference, tmp_path)
    some = [inputs("modernbert", "ids", length, reference)[0] for length in lengths]

    distances = [furthest(reference, ours, "modernbert", "ids", length) for length in lengths]

    assert max(distances) <= 1e-5
    assert moved(ours, some) == 0


def special(config: EncoderConfig) -> str:
    """What sets a family apart from BERT, read off its config."""
    facts = {
        "positions from the padding id on": config.pad is not None,
        "no token types": not config.types,
        "the first of several task types": bool(config.kinds),
        "embedding projection": config.embedding_width != config.width,
        f"{config.buckets} learned biases of distance": bool(config.buckets),
        "scores by content and distance": bool(config.relative.terms),
        "one layer for all": config.shared,
        "rotary positions": config.positions == "rotary",
        f"{config.key_heads} heads of keys to {config.heads} of queries": bool(config.key_heads),
        "norms of queries and keys": config.head_norm,
        "RMSNorm": config.norm == "rms",
        "norms behind each block": config.block_norm,
        "scaled word embeddings": config.embedding_scale != 1,
        "causal": config.causal,
        "two rotary bases": len(set(config.ropes)) == 2,
        "local windows": any(config.windows),
        "pre-norm": config.pre_norm,
        f"gated feed-forward ({config.activation})": config.gated,
        "no biases": not config.biases,
        "no biases of gate and up": {"gate", "up"} == {*LINEAR_NAMES} - {*config.biases},
    }
    return ", ".join(fact for fact, holds in facts.items() if holds) or "the reference"


def row(family: str, ours: Model) -> str:
    """A family's row of docs/models.md but for the figure."""
    return f"| {family} | {special(ours.config)} |"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_models_has_a_true_row_for_every_family(loaded: Loaded, family: str) -> None:
    """`python tests/model/loading/test_families.py` writes it, with the figures it measures."""
    assert row(family, loaded(family)[1]) in PAGE.read_text("utf-8")


def worst_cosine(reference: PreTrainedModel, ours: Model, half: Model, family: str) -> float:
    """The lowest cosine of a sequence's mean vectors by both, over one of each length."""
    some = [inputs(family, "ids", length, reference)[0] for length in range(1, MOST + 1)]
    return compare_vectors(means(half, some), means(ours, some)).worst_cosine


def means(model: Model, sequences: list[Sequence]) -> Tensor:
    """The mean of each sequence's last hidden states."""
    with torch.inference_mode():
        encoded = [model.encoder(model.encoder.pack([one])) for one in sequences]
        return torch.stack([one.last[one.packed.rows(0)].float().mean(0) for one in encoded])


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family == "gemma3_text" else pytest.mark.prove)
        for family in FAMILIES
    ],
)
def test_bfloat16_is_as_near_to_float32_as_the_page_says(
    loaded: Loaded, folders: Folders, family: str
) -> None:
    """By what its kernels round; to 1e-5, as sums differ by processor."""
    reference, ours = loaded(family)
    rows = [line.split("|") for line in PAGE.read_text("utf-8").splitlines()]
    rows = [cells for cells in rows if cells[1:2] == [f" {family} "] and "e-0" in cells[3]]
    ((*_, told, _),) = rows

    found = worst_cosine(reference, ours, load_rounded(folders[family]), family)

    assert found == pytest.approx(float(told), abs=2e-5)


def write_page() -> None:
    """Measure every cell and write the table of docs/models.md."""
    rows = [
        "| family | special | furthest from transformers | worst cosine in bfloat16 |",
        "|---|---|---|---|",
    ]
    for family in FAMILIES:
        model = theirs(family)
        with tempfile.TemporaryDirectory() as folder:
            ours = saved(model, Path(folder))
            cosine = worst_cosine(model, ours, load_rounded(Path(folder)), family)
        kinds = [cell.values[1:] for cell in cells() if cell.values[0] == family]
        furthest_ = max(furthest(model, ours, family, kind, length) for kind, length in kinds)
        # rounded down, as it is the worst
        rows.append(f"{row(family, ours)} {furthest_:.1e} | {math.floor(1e5 * cosine) / 1e5:.5f} |")
    page = PAGE.read_text("utf-8")
    start = page.index(rows[0])
    PAGE.write_text(page[:start] + "\n".join(rows) + page[page.index("\n\n", start) :], "utf-8")


if __name__ == "__main__":
    write_page()
