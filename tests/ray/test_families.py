"""Every family over HTTP, from a folder that transformers saved: what transformers computes.

Some families answer from a replica in this process; `prove` starts `headlight serve` on every one.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import load
from starlette.types import ASGIApp
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedModel

from model import families
from model.families import bert, jina_v2
from model.families.family import TinyModel
from service.pipeline.replica import Replica
from service.shapes.answer import SAFETENSORS
from service.tables.settings import Settings
from tests.model.loading import test_jina_bert as jina
from tests.model.loading.test_adapters import adapter
from tests.model.small_tokenizer import AS_IT_IS

if TYPE_CHECKING:
    from tests.ray.conftest import Start

Array = NDArray[Any]

SENTENCES = Path(__file__).parent.parent / "model" / "texts.txt"
CLOSE = 2e-5  # to transformers, whatever the dialect
# of random weights: another activation moves states by 6e-4 (gelu, gelu_new) to 1 (gelu, relu),
# transformers' own float32 is within 3e-6 of its float64
SPREAD = 0.15
VOCABULARY, SPARE = 300, 7  # tokens, and rows of the table that no token has
LONGEST = {"max_position_embeddings": 127}
ADAPTER = "left"
OUTPUTS = tuple(  # W^O, as transformers calls it in any family
    {one.tensor_names[-1]["layers.{i}.output"].rpartition("{i}.")[2] for one in families.FAMILIES}
)
# other widths of embeddings, distances without types, a decoder; of each family
# tests/model/loading/test_families.py has the same states and maps, without HTTP
QUICK = ("electra", "deberta-v2", "qwen3")

TEXT = "A dog ate the food because it was hungry"
OTHER = "Why?"
KINDS = ("text", "pair", "ids", "typed ids", "embeddings")


@dataclass(frozen=True)
class Frame:
    """What a tokenizer has beside its words.

    Args:
        marks: its added tokens, in order of their ids.
        pair: what it makes of two texts.
    """

    marks: tuple[str, ...]
    pair: str

    @property
    def single(self) -> str:
        """What it makes of one text."""
        before, after = self.pair.split("$A")
        return f"{before}$A {after.split()[0]}"

    def mark(self, name: str) -> str:
        """The padding or the unknown token."""
        return next(mark for mark in self.marks if name in mark.lower())


BERT = Frame(("[PAD]", "[UNK]", "[CLS]", "[SEP]"), "[CLS] $A [SEP] $B:1 [SEP]:1")
ROBERTA = Frame(("<s>", "<pad>", "</s>", "<unk>"), "<s> $A </s> </s> $B </s>")
ALBERT = Frame(("<pad>", "<unk>", "[CLS]", "[SEP]"), "[CLS] $A [SEP] $B [SEP]")
QWEN2 = Frame(("<|endoftext|>", "<pad>", "<unk>"), "$A <|endoftext|> $B <|endoftext|>")
GEMMA = Frame(("<pad>", "<eos>", "<bos>", "<unk>"), "<bos> $A <eos> $B <eos>")
ROBERTA_OF_TWO_TYPES = Frame(ROBERTA.marks, "<s> $A </s> </s> $B:1 </s>:1")


@dataclass(frozen=True)
class Family:
    """How transformers makes a small model of a family, and what its tokenizer is like.

    Args:
        name: how the names of its classes begin.
        tokenizer: transformers' class.
    """

    name: str
    tokenizer: str
    sizes: Mapping[str, Any]

    @property
    def words(self) -> str:
        """What its tokenizer cuts texts into."""
        return TOKENIZERS[self.tokenizer][0]

    @property
    def frame(self) -> Frame:
        """What its tokenizer has next to its words."""
        return TOKENIZERS[self.tokenizer][1]

    @property
    def types(self) -> int:
        """Rows of the table of token types; 0 where there is none."""
        return int(self.sizes.get("type_vocab_size", 0))

    @property
    def pad(self) -> int:
        """The id of the padding token."""
        return self.frame.marks.index(self.frame.mark("pad"))


# pieces and frame, by the class of tokenizers that a family has
TOKENIZERS = {
    "AlbertTokenizer": ("pieces of sentences", ALBERT),
    "BertTokenizer": ("pieces of words", BERT),
    "CamembertTokenizer": ("pieces of sentences", ROBERTA),
    "DebertaV2Tokenizer": ("pieces of sentences", BERT),
    "GemmaTokenizer": ("pieces with bytes", GEMMA),
    "MPNetTokenizer": ("pieces of words", ROBERTA),
    "Qwen2Tokenizer": ("bytes", QWEN2),
    "RobertaTokenizer": ("bytes", ROBERTA_OF_TWO_TYPES),
    "XLMRobertaTokenizer": ("pieces of sentences", ROBERTA),
    "TokenizersBackend": ("bytes", BERT),  # has none of its own
}
# which have another unknown token, lower-case, or trim offsets: their files are read as they are
BY_FILE = ("MPNetTokenizer", "AlbertTokenizer", "RobertaTokenizer")
ALIBI = TinyModel(jina.JinaBert.__name__, {**bert.TINY_BERT, "feed_forward_type": "reglu"})
FAMILIES = {
    name: Family(tiny.class_prefix, one.tokenizer_class, {**tiny.sizes, **LONGEST})
    for one in families.FAMILIES
    for name, tiny in [
        ("jina_bert", ALIBI) if one is jina_v2.FAMILY else (one.name, one.tiny_model)
    ]
    if tiny
}


def drawn(family: Family) -> PreTrainedModel:
    """A model of random weights, every bias and norm included."""
    own = {**family.sizes, "vocab_size": VOCABULARY + SPARE, "pad_token_id": family.pad}
    if family.name == jina.JinaBert.__name__:  # which transformers lacks
        return jina.theirs(**own)
    config = getattr(transformers, f"{family.name}Config")(**own, attn_implementation="eager")
    torch.manual_seed(0)
    model: PreTrainedModel = getattr(transformers, f"{family.name}Model")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.dim() == 1 and name.endswith("weight")  # around 1
            own = norm and family.frame is not GEMMA  # which stores them around 0
            parameter.copy_(torch.randn_like(parameter) * SPREAD + own)
    return model


def trained(family: Family) -> Tokenizer:
    """A tokenizer of the family's kind, trained on real sentences."""
    frame, how = family.frame, {"vocab_size": VOCABULARY, "show_progress": False}
    unknown = frame.mark("unk")
    if family.words == "pieces of words":
        library = Tokenizer(models.WordPiece(unk_token=unknown))
        library.normalizer = normalizers.BertNormalizer()
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(special_tokens=list(frame.marks), **how)
    elif family.words == "bytes":
        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        how["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(special_tokens=list(frame.marks), **how)
    elif family.words == "pieces with bytes":
        library = Tokenizer(models.BPE(unk_token=unknown, byte_fallback=True, fuse_unk=True))
        library.normalizer = normalizers.Replace(" ", "\u2581")
        trainer = trainers.BpeTrainer(special_tokens=list(frame.marks), **how)
    else:
        library = Tokenizer(models.Unigram())
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        marks = list(frame.marks)
        trainer = trainers.UnigramTrainer(special_tokens=marks, unk_token=unknown, **how)
    library.train_from_iterator(SENTENCES.read_text("utf-8").splitlines(), trainer)
    library.post_processor = processors.TemplateProcessing(
        single=frame.single,
        pair=frame.pair,
        special_tokens=[(mark, frame.marks.index(mark)) for mark in frame.marks],
    )
    assert library.get_vocab_size() == VOCABULARY
    return library


@dataclass(frozen=True)
class Case:
    """An input on our wire, and the same as transformers takes it."""

    item: dict[str, Any]
    theirs: dict[str, Tensor]


def cases(family: Family, library: Tokenizer, embedding: int) -> dict[str, Case]:
    """One of each kind.

    Args:
        embedding: numbers in a token's embedding.
    """
    random = torch.Generator().manual_seed(0)
    text, pair = library.encode(TEXT), library.encode(TEXT, OTHER)
    ids = torch.randint(0, VOCABULARY, (37,), generator=random).tolist()
    ids[11] = family.pad  # RoBERTa and its kin count positions without it
    types = torch.randint(0, max(family.types, 1), (37,), generator=random).tolist()
    vectors = torch.randn(29, embedding, generator=random)
    # as their tokenizers do, types only where there are several
    typed = [one if family.types > 1 else None for one in (text.type_ids, pair.type_ids, types)]
    return {
        "text": Case({"text": TEXT}, theirs(text.ids, typed[0])),
        "pair": Case({"text": TEXT, "pair": OTHER}, theirs(pair.ids, typed[1])),
        "ids": Case({"token_ids": ids}, theirs(ids)),
        "typed ids": Case({"token_ids": ids, "token_type_ids": types}, theirs(ids, typed[2])),
        "embeddings": Case({"embeddings": vectors.tolist()}, {"inputs_embeds": vectors[None]}),
    }


def theirs(ids: list[int], types: list[int] | None = None) -> dict[str, Tensor]:
    """Token ids as transformers takes them; all are real."""
    rows = torch.tensor([ids])
    case = {"input_ids": rows, "attention_mask": torch.ones_like(rows)}
    return case if types is None else {**case, "token_type_ids": torch.tensor([types])}


@dataclass(frozen=True)
class Expected:
    """What transformers computes of one sequence.

    Args:
        states: (tokens, width) by layer, the embeddings first.
        maps: (heads, query, key) by layer.
    """

    states: list[Array]
    maps: list[Array]

    @property
    def pooled(self) -> Array:
        """The mean of the last layer's vectors, (width,)."""
        return np.asarray(self.states[-1].mean(0))


def computed(reference: PreTrainedModel, case: Case) -> Expected:
    """What transformers makes of a case, alone and unfused."""
    with torch.inference_mode():
        out = reference(**case.theirs, output_hidden_states=True, output_attentions=True)
    states = [state[0].numpy() for state in out.hidden_states]
    return Expected(states, [layer[0].numpy() for layer in out.attentions])


@dataclass(frozen=True)
class Served:
    """A family's model behind HTTP, its cases, and what transformers computes of them."""

    client: httpx.AsyncClient
    family: Family
    cases: dict[str, Case]
    expected: dict[str, Expected]
    model: str
    reference: PreTrainedModel
    adapted: PreTrainedModel

    @property
    def layers(self) -> int:
        return len(self.expected["text"].maps)

    async def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        """The answer to a JSON body or to bytes, which must be 200."""
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await self.client.post(path, **given, **how)
        assert answer.status_code == 200, answer.text
        return answer

    async def encode(self, items: list[Any]) -> dict[str, Array]:
        """All that POST /v1/encode gives of inputs, exactly."""
        layers = list(range(self.layers + 1))
        body = {"inputs": items, "tokens": True, "layers": layers, "attention": {}}
        answer = await self.post("/v1/encode", body, headers={"Accept": SAFETENSORS})
        return dict(load(answer.content))


def params() -> list[Any]:
    """A family's name, and whether `headlight serve` answers or a replica in this process."""
    drill = (pytest.mark.ray, pytest.mark.prove)
    return [pytest.param((name, False), id=name) for name in QUICK] + [
        pytest.param((name, True), id=f"{name}, headlight serve", marks=drill) for name in FAMILIES
    ]


@pytest_asyncio.fixture(scope="module", params=params())
async def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    start: "Start",
    listen: Callable[..., AbstractAsyncContextManager[str]],
    outer: Callable[[Replica], ASGIApp],
) -> AsyncIterator[Served]:
    """A family behind real HTTP."""
    name, really = request.param
    family, folder = FAMILIES[name], tmp_path_factory.mktemp("checkpoint") / name
    reference, library = drawn(family), trained(family)
    stored: Callable[[str], str] = str
    if isinstance(reference, jina.JinaBert):
        jina.written(folder, reference, feed_forward_type=family.sizes["feed_forward_type"])
        (folder / "tokenizer_config.json").unlink()  # so that BERT's class reads pairs
        stored = jina.renamed
    else:
        reference.save_pretrained(folder)
    own = folder.parent / ADAPTER
    adapted = adapter(reference, own, name, 1, stored)
    library.save(str(folder / "tokenizer.json"))
    if family.tokenizer in BY_FILE:
        (folder / "tokenizer_config.json").write_text(json.dumps(AS_IT_IS))
    every = cases(family, library, reference.get_input_embeddings().weight.shape[1])
    expected = {kind: computed(reference, case) for kind, case in every.items()}
    async with AsyncExitStack() as stack:
        if really:
            how = ("--device", "cpu", "--adapter", f"{ADAPTER}={own}")
            url = stack.enter_context(start("--model", str(folder), *how)).url
        else:
            choices = {"device": "cpu", "threads": 1}
            settings = Settings(model=str(folder), adapter=(f"{ADAPTER}={own}",), **choices)
            replica = await Replica.start(settings, "family-1")
            stack.push_async_callback(replica.close)
            url = await stack.enter_async_context(listen(outer(replica)))
        client = httpx.AsyncClient(base_url=url, timeout=60)
        http = await stack.enter_async_context(client)
        yield Served(http, family, every, expected, name, reference, adapted)


def furthest(found: Mapping[str, Array], index: int, expected: Expected) -> float:
    """Largest difference of anything that an answer holds of one input."""
    wanted = {"pooled": expected.pooled, "tokens": expected.states[-1]}
    wanted |= {f"layers.{layer}": state for layer, state in enumerate(expected.states)}
    for layer, heads in enumerate(expected.maps):
        wanted |= {f"attention.{layer}.{head}": one for head, one in enumerate(heads)}
    own = {name: found[name] for name in found if name.startswith(f"{index}.")}
    assert own.keys() == {f"{index}.{name}" for name in wanted}
    return max(apart(own[f"{index}.{name}"], one) for name, one in wanted.items())


def apart(found: Any, expected: Array) -> float:
    """Largest difference of two arrays of one shape."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max())


async def test_every_state_and_map_is_transformers_own_alone_and_in_a_batch(
    served: Served,
) -> None:
    """Of every kind of input; in a batch of all of them twice, to the same bits as alone."""
    alone = {kind: await served.encode([served.cases[kind].item]) for kind in KINDS}
    order = [*KINDS, *KINDS[::-1]]
    batch = await served.encode([served.cases[kind].item for kind in order])

    for place, kind in enumerate(order):
        assert furthest(alone[kind], 0, served.expected[kind]) <= CLOSE, kind
        assert furthest(batch, place, served.expected[kind]) <= CLOSE, kind
        for name, array in alone[kind].items():
            assert np.array_equal(array, batch[f"{place}.{name.removeprefix('0.')}"]), (kind, name)


async def test_numbers_mean_the_same_however_they_come(served: Served) -> None:
    """Token ids, types and embeddings as JSON, and embeddings as base64."""
    ids, vectors = served.cases["typed ids"].item, served.cases["embeddings"].item["embeddings"]
    rows = np.array(vectors, np.float32)
    packed = {
        "shape": rows.shape,
        "dtype": "float32",
        "data": base64.b64encode(rows.tobytes()).decode(),
    }

    plain = await served.post("/v1/encode", {"inputs": [ids, {"embeddings": vectors}]})
    coded = await served.post("/v1/encode", {"inputs": [ids, {"embeddings": packed}]})

    for answer in (plain, coded):
        found = [item["pooled"] for item in answer.json()["data"]]
        assert found == [item["pooled"] for item in plain.json()["data"]]
        assert apart(found[0], served.expected["typed ids"].pooled) <= CLOSE
        assert apart(found[1], served.expected["embeddings"].pooled) <= CLOSE


async def test_openai_s_and_tei_s_routes_answer_the_same(served: Served) -> None:
    """Of texts and of token ids; pooled, and for TEI every token's vector."""
    ids, text = served.cases["ids"].item["token_ids"], served.expected["text"]
    expected = served.expected["ids"]

    for given, of in ((TEXT, text), (ids, expected)):
        openai = await served.post("/v1/embeddings", {"model": served.model, "input": [given]})
        unit = of.pooled / np.linalg.norm(of.pooled)
        assert apart(openai.json()["data"][0]["embedding"], unit) <= CLOSE
        tei = await served.post("/embed", {"inputs": [given, given], "normalize": False})
        assert max(apart(one, of.pooled) for one in tei.json()) <= CLOSE
        (every,) = (await served.post("/embed_all", {"inputs": given})).json()
        assert apart(every, of.states[-1]) <= CLOSE


async def infer(served: Served, *inputs: tuple[str, str, Any]) -> dict[str, Array]:
    """The outputs of POST /v2/models/{model}/infer for inputs of one sequence each, unpadded."""
    asked = {
        "inputs": [
            {"name": name, "datatype": datatype, "shape": np.shape(data), "data": data}
            for name, datatype, data in inputs
        ],
        "outputs": [{"name": name} for name in ("pooled", "tokens", "layers", "attention")],
    }
    answer = await served.post(f"/v2/models/{served.model}/infer", asked)
    made = {one["name"]: one for one in answer.json()["outputs"]}
    return {name: np.reshape(one["data"], one["shape"]) for name, one in made.items()}


async def test_the_open_inference_protocol_answers_the_same(served: Served) -> None:
    """Texts, ids with types and without, ids behind which padding is masked, and embeddings."""
    ids, types = served.cases["typed ids"].item.values()
    vectors = served.cases["embeddings"].item["embeddings"]
    padding, real = [[0] * 3], [[1] * len(ids) + [0] * 3]
    padded = [ids + padding[0]]
    requests: list[tuple[str, list[tuple[str, str, Any]]]] = [
        ("text", [("text", "BYTES", [TEXT])]),
        ("ids", [("input_ids", "INT64", [ids])]),
        ("typed ids", [("input_ids", "INT64", [ids]), ("token_type_ids", "INT64", [types])]),
        ("ids", [("input_ids", "INT64", padded), ("attention_mask", "INT64", real)]),
        ("embeddings", [("inputs_embeds", "FP32", [vectors])]),
    ]

    for kind, inputs in requests:
        found, expected = await infer(served, *inputs), served.expected[kind]
        assert apart(found["pooled"][0], expected.pooled) <= CLOSE
        assert apart(found["tokens"][0], expected.states[-1]) <= CLOSE
        assert apart(found["layers"][0], np.stack(expected.states)) <= CLOSE
        assert apart(found["attention"][0], np.stack(expected.maps)) <= CLOSE


async def test_a_type_beyond_the_table_is_refused_with_the_tables_size(served: Served) -> None:
    """Where there is no table, the only type is 0."""
    most = max(served.family.types, 1)
    item = {"token_ids": [5, 6, 7], "token_type_ids": [0, most, 0]}

    answer = await served.client.post("/v1/encode", json={"inputs": [item]})

    assert (answer.status_code, answer.json()["code"]) == (422, "token_out_of_range")
    assert answer.json()["limit"] == most
    assert answer.json()["errors"][0]["loc"] == ["inputs", 0, "token_type_ids"]


async def test_the_width_of_embeddings_is_told_and_held(served: Served) -> None:
    """In /info, in the protocol's metadata, and in the refusal of any other."""
    vectors = served.cases["embeddings"].item["embeddings"]
    width = len(vectors[0])
    wrong = [[*row, 0.5] for row in vectors]

    info = (await served.client.get("/info")).json()
    inputs = (await served.client.get(f"/v2/models/{served.model}")).json()["inputs"]
    answer = await served.client.post("/v1/encode", json={"inputs": [{"embeddings": wrong}]})

    assert info["embedding_width"] == width
    assert [one["shape"][2] for one in inputs if one["name"] == "inputs_embeds"] == [width]
    assert (answer.status_code, answer.json()["limit"]) == (422, width)
    assert answer.json()["code"] == "shape_mismatch"


async def test_statistics_are_those_of_transformers_maps(served: Served) -> None:
    """By their formulas, in float64."""
    asked = {"inputs": [served.cases["ids"].item], "attention": {"form": "stats"}}
    told = (await served.post("/v1/encode", asked)).json()["data"][0]["attention"]["stats"]

    for layer, maps in enumerate(served.expected["ids"].maps):
        for head, one in enumerate(maps.astype(float)):
            found = dict(zip(told["fields"], told["values"][str(layer)][str(head)], strict=True))
            for name, value in statistics(one).items():
                assert found[name] == pytest.approx(value, abs=1e-4), (layer, head, name)


def statistics(one: Array) -> dict[str, float]:
    """Some of docs/attention.md."""
    place = np.arange(len(one))
    apart, seen = np.abs(place[:, None] - place), one[one > 0]
    return {
        "self": np.diag(one).mean(),
        "previous": np.diag(one, -1).mean(),
        "next": np.diag(one, 1).mean(),
        "entropy": -(seen * np.log(seen)).sum() / len(one),
        "distance": (one * apart).sum() / one.sum(),
        "received_max": one.mean(0).max(),
    }


def without(served: Served, layer: int, head: int) -> Array:
    """The pooled vector that transformers computes of the text without one head, (width,)."""
    heads, calls = len(served.expected["text"].maps[0]), 0

    def cut(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal calls
        mixed = given[0].clone()
        if calls == layer:  # layers may share one W^O
            mixed.unflatten(-1, (heads, -1))[..., head, :] = 0
        calls += 1
        return (mixed, *given[1:])

    modules = [each for name, each in served.reference.named_modules() if name.endswith(OUTPUTS)]
    hooks = [each.register_forward_pre_hook(cut) for each in modules]
    try:
        return computed(served.reference, served.cases["text"]).pooled
    finally:
        for hook in hooks:
            hook.remove()


async def test_a_sweep_is_what_transformers_computes_without_each_head(served: Served) -> None:
    """And so is a gate; other requests at the same time keep every bit."""
    whole, item = served.expected["text"].pooled, served.cases["text"].item
    gate = {"layer": served.layers - 1, "head": 1, "scale": 0.0}
    bodies = [{"inputs": [item]}, {"inputs": [item], "gates": [gate]}] * 3
    swept = (await served.post("/v1/encode", {"inputs": [item], "sweep": "heads"})).json()
    told = await asyncio.gather(*(served.post("/v1/encode", body) for body in bodies))

    for layer, maps in enumerate(served.expected["text"].maps):
        for head in range(len(maps)):
            cosine = likeness(whole, without(served, layer, head))
            found = swept["data"][0]["sweep"]["cosine"][str(layer)][str(head)]
            assert found == pytest.approx(cosine, abs=CLOSE), (layer, head)
    plain, gated = ([one.json()["data"][0]["pooled"] for one in told[i::2]] for i in (0, 1))
    assert plain == plain[:1] * 3 and gated == gated[:1] * 3
    assert apart(plain[0], whole) <= CLOSE
    assert apart(gated[0], without(served, gate["layer"], 1)) <= CLOSE < apart(gated[0], whole)


def likeness(one: Array, other: Array) -> float:
    """The cosine of two vectors."""
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


async def test_a_likeness_has_shares_that_add_up_to_transformers_cosine(served: Served) -> None:
    """Of texts and of token ids."""
    ids = served.cases["ids"].item
    asked = {"left": TEXT, "right": [served.cases["text"].item, ids]}
    told = (await served.post("/v1/similarity", asked)).json()

    for one, kind in zip(told["right"], ("text", "ids"), strict=True):
        left, right = served.expected["text"].pooled, served.expected[kind].pooled
        assert one["score"] == pytest.approx(likeness(left, right), abs=CLOSE)
        assert np.sum(one["matrix"]) + one["rest"] == pytest.approx(one["score"], abs=CLOSE)


async def test_an_adapter_computes_what_transformers_does_with_merged_weights(
    served: Served,
) -> None:
    """Of every kind of input; at once with the plain model's requests, to the same bits."""
    bodies = [
        {"inputs": [served.cases[kind].item], "model": model}
        for kind in KINDS
        for model in (served.model, f"{served.model}:{ADAPTER}")
    ]
    alone = [(await served.post("/v1/encode", body)).json()["data"] for body in bodies]
    told = await asyncio.gather(*(served.post("/v1/encode", body) for body in bodies))

    assert [one.json()["data"] for one in told] == alone
    for place, kind in enumerate(KINDS):
        plain, own = (one[0]["pooled"] for one in alone[2 * place : 2 * place + 2])
        expected = computed(served.adapted, served.cases[kind]).pooled
        assert apart(own, expected) <= CLOSE < apart(own, np.array(plain))
