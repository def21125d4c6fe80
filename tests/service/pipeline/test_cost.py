"""POST /v1/encode?dry_run=true and 413: what an answer costs."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from types import FrameType
from typing import Any, get_args

import httpx
import pytest
import torch
from safetensors.numpy import load

from model import kernels
from model.config import TRANSFORMER_BASE, EncoderConfig, Relative
from model.flops import pass_flops
from model.maps import price as maps
from model.maps.choices import Form
from model.maps.forms import Selection
from model.maps.units import Units, divide_into_units
from model.packing import Sequence as Tokens
from model.pooling import Dense, Pooling, identity
from model.probes import Maps, Parts, Readout, Sources, Steps, Why
from model.probes.backward import LAYER_SECONDS
from model.probes.carried import CARRY_PASSES
from model.probes.parts import PART_COST
from model.projection import Projection
from model.task_heads import Classifier, Splade
from service.pipeline.cost import make_cost_counter, step_flops
from service.pipeline.replica import Replica
from service.questions.encode.maps import count_tensors
from service.questions.encode.question import weigh_answer
from service.shapes.answer import SAFETENSORS
from service.shapes.price import MOST_ARRAYS, Layout
from service.shapes.step import Step
from service.shapes.work import Outputs, Result, Work
from service.tables.settings import JSON_FACTOR
from tests.conftest import posted
from tests.replica_internals import believe, slow_down

TEXTS: list[Any] = [
    "A dog ate the food because it was hungry",
    {"text": "Unbelievable headlights", "pair": "They outshine the tokenizers"},
]
FORMS: dict[str, dict[str, Any]] = {
    "nothing shown": {},
    "full": {"attention": {}},
    "rows": {"attention": {"form": "rows", "rows": [2, 1], "heads": {"0": [5]}}},
    "top": {"attention": {"form": "top", "k": 3, "specials": "drop"}},
    "blocks": {"attention": {"form": "blocks", "size": 3, "level": "word"}},
    "stats": {"attention": {"form": "stats", "dtype": "float16"}},
    "dominance": {"attention": {"form": "dominance", "level": "word", "specials": "drop"}},
    "rollout": {"attention": {"form": "rollout"}},
}


def cost(config: EncoderConfig, tokens: int, entered: int | None = None) -> float:
    """What admission counts of a sequence, of which nothing is wanted."""
    return make_cost_counter(config)([Work(Tokens([1] * tokens), Outputs(), entered=entered)])[0]


async def priced(client: httpx.AsyncClient, asked: Any, **headers: str) -> dict[str, Any]:
    """What a dry run tells of a request."""
    return await posted(client, "/v1/encode?dry_run=true", asked, headers=headers)


@pytest.fixture
def batches(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sequence[Work]]]:
    """The batches that run meanwhile, but for the service's own checks of itself."""
    runner, seen = replica.lanes, list[Sequence[Work]]()
    run = runner.run_batch

    def watched(works: Sequence[Work], threads: int) -> list[Result | Exception]:
        if works[0] is not replica.proof.canary:
            seen.append(works)
        return run(works, threads)

    monkeypatch.setattr(runner, "run_batch", watched)
    yield seen


@pytest.mark.parametrize("asked", FORMS.values(), ids=FORMS.keys())
async def test_a_dry_run_tells_the_price_and_computes_nothing(
    client: httpx.AsyncClient, batches: list[Sequence[Work]], asked: dict[str, Any]
) -> None:
    """Its figures are what the answer's usage then says."""
    told = await priced(client, {"inputs": TEXTS, **asked})

    assert not batches
    answer = await client.post("/v1/encode", json={"inputs": TEXTS, **asked})
    usage = answer.json()["usage"]
    assert batches and told.pop("flops") > 0
    assert told == {
        "tokens": usage["tokens"],
        "attention_bytes": usage["attention_bytes"],
        "answer_bytes": usage["answer_bytes"],
        "admitted": True,
        "code": None,
        "retry_after_s": None,
    }


async def test_a_dry_run_counts_products_and_sums(client: httpx.AsyncClient) -> None:
    """Of the linears, of the attention, and of the scores of what is shown."""
    told = await priced(client, {"inputs": ["a"], "attention": {"heads": {"5": [1, 2]}}})

    linears = 2 * 3 * 6 * (4 * 384 * 384 + 2 * 384 * 1536)
    assert told["flops"] == linears + 6 * 3 * 3 * 4 * 384 + 2 * 3 * 3 * 2 * 32


async def test_a_dry_run_says_why_a_request_would_be_refused(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too large in one encoding and not in another; too late for ever, or now, and until when."""
    large = {"inputs": [{"token_ids": [7] * 200}], "attention": {}}
    many = {"inputs": [{"token_ids": [7] * 256}] * 200}

    as_json = await priced(client, large)
    as_file = await priced(client, large, accept=SAFETENSORS)
    never = await priced(client, many, **{"x-headlight-deadline-ms": "1"})
    slow_down(monkeypatch, replica.batcher)
    late = await priced(client, {"inputs": ["a"]})

    assert as_json["attention_bytes"] == as_file["attention_bytes"] == 72 * 200 * 200 * 4
    reasons = [(one["admitted"], one["code"]) for one in (as_json, as_file, never, late)]
    assert reasons == [
        (False, "attention_too_large"),
        (True, None),
        (False, "deadline_unreachable"),
        (False, "overloaded"),
    ]
    assert as_json["retry_after_s"] is never["retry_after_s"] is None
    assert late["retry_after_s"] >= 1


async def test_a_dry_run_counts_as_a_request_for_its_kind_of_input(
    client: httpx.AsyncClient,
) -> None:
    """Like any other."""

    async def count() -> float:
        labels = (
            'code="200",input="tokens",model="all-MiniLM-L6-v2",replica="replica-1",'
            'route="/v1/encode"'
        )
        text = (await client.get("/metrics")).text
        found = re.search(rf"^headlight_requests_total{{{labels}}} (.*)$", text, re.MULTILINE)
        return float(found[1]) if found else 0

    before = await count()
    await priced(client, {"inputs": [{"token_ids": [7]}]})

    assert await count() == before + 1


async def test_a_dry_run_is_asked_for_by_true_alone(client: httpx.AsyncClient) -> None:
    """Whatever is neither true nor false is refused; false is no dry run."""
    maybe = await client.post("/v1/encode?dry_run=maybe", json={"inputs": ["a"]})
    real = await client.post("/v1/encode?dry_run=false", json={"inputs": ["a"]})

    assert (maybe.status_code, maybe.json()["code"]) == (422, "out_of_range")
    assert maybe.json()["errors"][0]["loc"] == ["dry_run"]
    assert len(real.json()["data"][0]["pooled"]) == 384


LARGE: dict[str, tuple[int, int, dict[str, Any], dict[str, str]]] = {
    "full": (1, 200, {}, {}),
    "every row": (1, 200, {"form": "rows", "rows": list(range(200))}, {}),
    "some rows": (20, 256, {"form": "rows", "rows": list(range(6))}, {}),
    "top": (2, 200, {"form": "top", "k": 90, "weight": "value_norm"}, {}),
    "fine blocks": (3, 256, {"form": "blocks", "size": 128}, {}),
    "dominance": (40, 256, {"form": "dominance"}, {}),
    "rollout": (40, 256, {"form": "rollout"}, {}),
    "some heads": (6, 200, {"heads": {"1": [0], "2": list(range(12)), "4": [3, 7]}}, {}),
    "safetensors": (6, 256, {}, {"accept": SAFETENSORS}),
    "float16": (4, 256, {"dtype": "float16"}, {}),
}


@pytest.mark.parametrize(("count", "tokens", "how", "accept"), LARGE.values(), ids=LARGE.keys())
async def test_a_refusal_says_the_bytes_that_a_dry_run_says(
    client: httpx.AsyncClient, count: int, tokens: int, how: dict[str, Any], accept: dict[str, str]
) -> None:
    """In every form, however the arrays are written; and the limit."""
    asked = {"inputs": [{"token_ids": [7] * tokens}] * count, "attention": how}

    refused = await client.post("/v1/encode", json=asked, headers=accept)

    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (413, "attention_too_large")
    assert problem["bytes"] > problem["limit"]
    assert (await priced(client, asked, **accept))["attention_bytes"] == problem["bytes"]


WELL = ["All is well", "Yes"]  # 5 and 3 tokens
MODEL = "/v2/models/all-MiniLM-L6-v2/infer"
VECTOR = 384 * 4  # bytes
IN_NUMBERS, IN_BYTES = JSON_FACTOR, 1  # times the limit of such an answer


def infer(**outputs: bool) -> dict[str, Any]:
    """A request of the Open Inference Protocol; each output as bytes or not."""
    named = [{"name": name, "parameters": {"binary_data": on}} for name, on in outputs.items()]
    text = {"name": "text", "shape": [2], "datatype": "BYTES", "data": WELL}
    return {"inputs": [text], "outputs": named}


def encode(**more: Any) -> dict[str, Any]:
    """A request of POST /v1/encode without pooled vectors."""
    return {"inputs": WELL, "pooled": False, **more}


WEIGHTS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "pooled": ("/v1/encode", {"inputs": WELL}, IN_NUMBERS, 2 * VECTOR),
    "cut": ("/v1/encode", encode(pooled={"dimensions": 7}), IN_NUMBERS, 2 * 7 * 4),
    "tokens": ("/v1/encode", encode(tokens=True), IN_NUMBERS, 8 * VECTOR),
    "layers": ("/v1/encode", encode(layers=[0, 2, -1]), IN_NUMBERS, 3 * 8 * VECTOR),
    "all of it": (
        "/v1/encode",
        {"inputs": WELL, "tokens": True, "layers": [1], "attention": {"heads": {"0": [1]}}},
        IN_NUMBERS,
        (2 + 8 + 8) * VECTOR + (25 + 9) * 4,
    ),
    "float16": ("/v1/encode", encode(tokens=True, dtype="float16"), IN_NUMBERS, 8 * VECTOR // 2),
    "base64": ("/v1/encode", encode(tokens=True, encoding="base64"), IN_BYTES, 8 * VECTOR),
    "OpenAI": ("/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": WELL}, IN_NUMBERS, 3072),
    "TEI": ("/embed", {"inputs": WELL}, IN_NUMBERS, 2 * VECTOR),
    "TEI's tokens": ("/embed_all", {"inputs": WELL}, IN_NUMBERS, 8 * VECTOR),
    "TEI's vectors that stay here": (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": WELL}},
        IN_BYTES,
        3 * VECTOR,
    ),
    "padded tokens": (MODEL, infer(tokens=False), IN_NUMBERS, 10 * VECTOR),
    "padded tokens as bytes": (MODEL, infer(tokens=True), IN_BYTES, 10 * VECTOR),
    "padded layers": (MODEL, infer(layers=False), IN_NUMBERS, 7 * 10 * VECTOR),
    "padded maps": (MODEL, infer(attention=False), IN_NUMBERS, 2 * 72 * 25 * 4),
    "numbers beside bytes": (MODEL, infer(pooled=False, tokens=True), IN_NUMBERS, 2 * VECTOR),
    "bytes beside numbers": (
        MODEL,
        infer(pooled=False, tokens=True, layers=True),
        IN_BYTES,
        82 * VECTOR,
    ),
}


@pytest.mark.parametrize(("path", "body", "times", "weight"), WEIGHTS.values(), ids=WEIGHTS)
async def test_an_answer_of_any_api_is_as_large_as_the_limit_and_no_larger(
    served: Callable[..., httpx.AsyncClient],
    batches: list[Sequence[Work]],
    path: str,
    body: dict[str, Any],
    times: int,
    weight: int,
) -> None:
    """A byte more is refused, and nothing is computed."""
    async with served(max_answer_bytes=times * (weight - 1)) as client:
        refused = await client.post(path, json=body)
    computed = bool(batches)
    async with served(max_answer_bytes=times * weight) as client:
        answered = await client.post(path, json=body)

    assert (refused.status_code, answered.status_code) == (413, 200), refused.text
    assert not computed
    assert f"{weight:,}" in refused.text and f"{weight - 1:,}" in refused.text


async def test_a_dry_run_says_that_memory_is_short(
    served: Callable[..., httpx.AsyncClient], batches: list[Sequence[Work]]
) -> None:
    """And so does the request itself, which may come again; a small one is let in."""
    many = encode(inputs=WELL * 11, layers=[0, 1])
    async with served(max_held_bytes=1) as client:
        told = await priced(client, many)
        refused = await client.post("/v1/encode", json=many)
        computed = bool(batches)
        small = await client.post("/v1/encode", json={"inputs": WELL})

    assert (told["admitted"], told["code"], told["retry_after_s"]) == (False, "overloaded", 1)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert not computed and small.status_code == 200


async def test_a_vocabulary_counts_in_what_a_sequence_costs() -> None:
    """Admission plans with the time that it takes besides the layers'."""
    linear = kernels.PLAIN.linear(torch.zeros(7, 5), None)
    head = Splade(Projection((Dense(linear, identity, 7, 11_000_003),)), "max", log_twice=False)
    plain, sparse = (Work(Tokens([1] * 64), Outputs(task_heads=one)) for one in ((), (head,)))

    of = make_cost_counter(TRANSFORMER_BASE)

    beside = 2 * 11_000_003 * 64 / pass_flops(TRANSFORMER_BASE, 64)
    assert of([plain, sparse]) == pytest.approx([64, 64 * (1 + beside)])


async def test_what_is_shown_counts_in_what_a_sequence_costs() -> None:
    """By the length of its maps; one layer explained is some layers more."""
    of = make_cost_counter(TRANSFORMER_BASE)
    every = {layer: tuple(range(8)) for layer in range(6)}

    def times(tokens: int, **asked: Any) -> float:
        one = Selection(every, divide_into_units(tokens), **asked)
        wanted = Outputs(probes=(Maps(one),)), Outputs()
        shown, plain = of([Work(Tokens([1] * tokens), outputs) for outputs in wanted])
        return shown / plain

    forms: list[Any] = ["rows", "full", "dominance", "top"]
    shown = [times(512, form=form, rows=(1,)) for form in forms]
    assert 1 < shown[0] < 1.1 < shown[1] < shown[2] < shown[3]
    assert times(64, form="top") < times(512, form="top")
    (explained,) = of([Work(Tokens([1] * 64), Outputs(probes=(Steps(0),)))])
    assert 64 * 1.5 < explained < 64 * 2
    sources = Sources(range(1, 65), range(10), ("mean",))
    (carried,) = of([Work(Tokens([1] * 64), Outputs(probes=(sources,)))])
    assert carried == pytest.approx(64 * (1 + 10 + CARRY_PASSES))


async def test_a_rollout_costs_the_products_of_its_layers() -> None:
    """Of all layers but the first, in the columns that are answered; they are in the bytes, too."""
    every = {layer: (0,) for layer in range(6)}
    words = divide_into_units(
        66,
        level="word",
        words=[None, *(place // 2 for place in range(64)), None],
        special=[place in (0, 65) for place in range(66)],
    )
    scores = 6 * 2 * 64 * 66 * 66

    def price(units: Units, *, half: bool = False) -> tuple[int, int]:
        asked = Selection(every, units, "rollout", half=half)
        works = [Work(Tokens([1] * 66), Outputs(probes=(Maps(asked),)))] * 2
        beside = weigh_answer(works, TRANSFORMER_BASE, Layout())
        return maps.count_product_flops(
            asked, TRANSFORMER_BASE
        ) - scores, beside.made - beside.total

    assert price(divide_into_units(66)) == (5 * 2 * 66 * 66 * 66, 4 * 66 * 66)
    assert price(divide_into_units(66), half=True) == (5 * 2 * 66 * 66 * 66, 2 * 4 * 66 * 66)
    assert price(words) == (5 * 2 * 66 * 66 * 34, 2 * 4 * 66 * 34)


@pytest.mark.parametrize("form", ["rollout", "top", "stats"])
async def test_what_is_shown_too_late_is_refused_before_any_work(
    client: httpx.AsyncClient,
    replica: Replica,
    batches: list[Sequence[Work]],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    """A text that is encoded in time, whose attention would not be."""
    config = replica.lanes.model.config
    believe(monkeypatch, replica.batcher, cost(config, 256) / 10)  # it takes 10 s
    text, headers = {"inputs": [{"token_ids": [7] * 256}]}, {"x-headlight-deadline-ms": "12000"}

    encoded = await priced(client, text, **headers)
    asked = {**text, "attention": {"form": form}}
    told = await priced(client, asked, **headers)
    refused = await client.post("/v1/encode", json=asked, headers=headers)

    assert encoded["admitted"] and told["code"] == "deadline_unreachable"
    assert (refused.status_code, refused.json()["code"]) == (422, "deadline_unreachable")
    assert refused.json()["estimate_ms"] > 12_000 and not batches


async def test_spans_count_in_what_a_sequence_costs() -> None:
    """Each is pooled by itself, and the lane's time for it says nothing of the layers' speed."""
    parts = Parts([(0, 5)] * 11, Pooling(("mean",), normalize=True))
    work = Work(Tokens([1] * 64), Outputs(probes=(parts,)))

    of = make_cost_counter(TRANSFORMER_BASE)

    beside = 11 * PART_COST / pass_flops(TRANSFORMER_BASE, 64)
    assert of([work]) == pytest.approx([64 * (1 + beside)])


async def test_calls_of_a_readout_count_in_what_a_sequence_costs() -> None:
    """They take a short text's time many times over, the more so the smaller the model is."""
    head = Classifier(("a",), Pooling(("mean",), normalize=False), Projection(()), "none", "none")
    work = Work(Tokens([1] * 64), Outputs(probes=(Readout(head, torch.ones(1, 1)),)))

    (beside,), (cost,) = (make_cost_counter(TRANSFORMER_BASE, speed=n)([work]) for n in (0, 5000))

    assert cost - beside == pytest.approx(5000 * 6 * LAYER_SECONDS)


async def test_scores_by_content_and_distance_are_priced() -> None:
    """The longer the text the more, and most where a pass begins at its start; in maps too."""
    plain = replace(TRANSFORMER_BASE, positions="learned")
    relative = Relative(reach=256, furthest=512, by_query=True, by_key=True)
    more = replace(plain, positions="relative", relative=relative)

    ratios = [cost(more, n) / cost(plain, n) for n in (64, 128, 256, 512)]
    assert ratios[0] == 1 and ratios == sorted(ratios) and ratios[-1] > 1.3
    assert pass_flops(more, 512) > pass_flops(plain, 512)
    whole = cost(more, 512)
    entered = [cost(more, 512, layer) for layer in range(more.layers)]
    assert [whole, *entered] == sorted([whole, *entered], reverse=True)
    shown = Selection({0: (0, 1)}, divide_into_units(300))
    assert maps.count_product_flops(shown, more) > 3 * maps.count_product_flops(shown, plain)
    looked = [
        maps.estimate_flops(shown, each) - maps.count_product_flops(shown, each)
        for each in (plain, more)
    ]
    assert looked[1] - looked[0] == maps.TERM_FLOPS * 2 * 2 * 300**2  # terms, heads, cells


async def test_what_slopes_take_from_scores_is_priced() -> None:
    """A pass over a long text takes an eighth more; a map's cell costs more than a pass's."""
    plain = replace(TRANSFORMER_BASE, positions="learned", width=768, heads=12, feed_forward=3072)
    more = replace(plain, positions="alibi")

    ratios = [cost(more, n) / cost(plain, n) for n in (64, 512, 2048, 8192)]
    assert ratios[0] == 1 and ratios == sorted(ratios) and 1.1 < ratios[-1] < 1.15
    assert pass_flops(more, 512) == pass_flops(plain, 512)
    shown = Selection({0: (0, 1)}, divide_into_units(300))
    assert (
        maps.estimate_flops(shown, more) - maps.estimate_flops(shown, plain)
        == maps.SLOPE_FLOPS * 2 * 300**2
    )


async def test_a_decoder_is_priced_by_its_heads_of_keys_and_by_what_its_tokens_see() -> None:
    """Counted by hand; in maps by the tiles of queries, which have no keys behind them."""
    whole = replace(TRANSFORMER_BASE, positions="learned", heads=6, head_size=14, gated=True)
    more = replace(whole, key_heads=2, causal=True)
    width, inner, mixed, keys = 512, 2048, 6 * 14, 2 * 14

    weights = width * (mixed + 2 * keys) + mixed * width + 3 * width * inner
    seen = sum(range(1, 10)) + 1  # of nine tokens, and of one
    assert pass_flops(more, 9) + pass_flops(more, 1) == 2 * 6 * (weights * 10 + 2 * mixed * seen)
    entered = 2 * (weights * 6 - width * (mixed + 2 * keys)) * 9 + 2 * 2 * mixed * 45 * 5
    assert pass_flops(more, 9, entered=0) == entered

    long = Selection({0: (0, 1)}, divide_into_units(1024))
    assert 0.5 < maps.count_product_flops(long, more) / maps.count_product_flops(long, whole) < 0.6
    rows = replace(long, form="rows", rows=(1, 2))  # of any keys
    assert maps.count_product_flops(rows, more) == maps.count_product_flops(rows, whole)


# 24 layers of 16 heads, of which two in three look 64 tokens far
DEEP = replace(
    TRANSFORMER_BASE,
    positions="learned",
    width=1024,
    layers=24,
    heads=16,
    windows=tuple(64 if layer % 3 else None for layer in range(24)),
)


async def test_a_file_of_too_many_arrays_is_refused_before_it_is_computed(
    client: httpx.AsyncClient, batches: list[Sequence[Work]]
) -> None:
    """However small each is: its header has an entry for each; JSON has none."""
    many = {"inputs": ["a"] * (MOST_ARRAYS // 72), "attention": {}}

    answer = await client.post("/v1/encode", json=many, headers={"accept": SAFETENSORS})
    as_json = await priced(client, many)

    told = answer.json()
    assert (answer.status_code, told["code"], told["limit"]) == (
        413,
        "answer_too_large",
        MOST_ARRAYS,
    )
    assert "arrays, and the limit is 100,000" in told["detail"] and not batches
    assert as_json["code"] != "answer_too_large"
    info = (await client.get("/info")).json()
    assert info["limits"]["max_file_arrays"] == MOST_ARRAYS


@pytest.mark.parametrize("form", get_args(Form))
async def test_the_arrays_of_every_form_are_counted(
    client: httpx.AsyncClient, batches: list[Sequence[Work]], form: Form
) -> None:
    """As many as a file then holds."""
    attention = {
        "form": form,
        "layers": [0, 3],
        **({"rows": [1]} if form in ("rows", "why") else {}),
        **({"segments": [[1, 2], [2, 3]]} if form == "mean" else {}),
    }
    asked = {"inputs": ["a b"], "pooled": False, "attention": attention}

    answer = await client.post("/v1/encode", json=asked, headers={"accept": SAFETENSORS})

    shown = next(work.outputs.probe(Maps) for batch in batches for work in batch)
    assert shown and len(load(answer.content)) == count_tensors(shown.selection)


MOST_STEPS = 1_000_000  # instructions of Python, 5 ms of a core; walks take 8 to 50 million


def steps(run: Callable[[], object]) -> int:
    """Count the instructions that Python takes for something."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def worded(number: int) -> Units:
    """A sequence of 32 tokens in words that the bits of a number part."""
    parts = accumulate(number >> place % 11 & 1 for place in range(30))
    special = [place in (0, 31) for place in range(32)]
    return divide_into_units(32, level="word", words=[None, *parts, None], special=special)


BODIES: dict[str, Sequence[Units]] = {  # 2,048 inputs or some 65,000 tokens
    "alike": [divide_into_units(1)] * 2048,
    "of all lengths": [divide_into_units(tokens) for tokens in range(1, 361)],
    "of other words": [worded(number) for number in range(2048)],
}


@pytest.mark.parametrize(
    "body",
    [  # what else is here is for `make prove`
        pytest.param(body, id=name, marks=() if name == "of all lengths" else pytest.mark.prove)
        for name, body in BODIES.items()
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=() if form in ("full", "top", "rollout") else pytest.mark.prove)
        for form in get_args(Form)
    ],
)
async def test_any_body_is_priced_in_milliseconds(form: Form, body: Sequence[Units]) -> None:
    """In its bytes, in its operations and in its time, however deep the model is."""
    heads = {layer: tuple(range(16)) for layer in range(24)}
    kind = Why if form == "why" else Maps
    asked = {
        units: Outputs(probes=(kind(Selection(heads, units, form, rows=(0,))),)) for units in body
    }
    works = [Work(Tokens([1] * units.tokens), asked[units]) for units in body]
    step, of = Step(works), make_cost_counter(DEEP)

    weighed = steps(lambda: weigh_answer(works, DEEP, Layout()))
    counted = steps(lambda: step_flops(DEEP, {}, step))
    timed = steps(lambda: of(works))

    assert weighed + max(counted, timed) <= MOST_STEPS


ALIKE: dict[str, tuple[dict[str, Any], list[Any], int]] = {
    "tokens": ({"form": "full"}, ["a b", "c d", "a b c"], 2),
    "words": ({"level": "word"}, ["a b", "c d", "headlights", "a b c"], 3),
    "without special ones": ({"specials": "drop"}, ["a b", {"token_ids": [7, 8, 9, 10]}], 2),
    "separators": ({"form": "stats"}, ["a b", "c d", {"token_ids": [101, 102, 9, 102]}], 2),
}


@pytest.mark.parametrize(("attention", "texts", "kinds"), ALIKE.values(), ids=ALIKE)
async def test_inputs_that_are_alike_share_what_is_shown_of_them(
    client: httpx.AsyncClient,
    batches: list[Sequence[Work]],
    attention: dict[str, Any],
    texts: list[Any],
    kinds: int,
) -> None:
    """So it is made, and priced, once; of the others each has its own."""
    answer = await client.post("/v1/encode", json={"inputs": texts, "attention": attention})

    assert answer.status_code == 200, answer.text
    works = [work for batch in batches for work in batch]
    assert (len(works), len({id(work.outputs) for work in works})) == (len(texts), kinds)


GATES = [{"layer": 0, "head": 1, "scale": 0.5}, {"layer": 5, "head": 2, "scale": 0.0}]
PATCH = [{"layer": 3, "head": 4, "from": 0}]
CHANGES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "gates": ("/v1/encode", {"inputs": WELL, "gates": GATES}, [2, 2]),
    "an input's own": (
        "/v1/encode",
        {"inputs": ["a", {"text": "b", "gates": GATES[:1], "patch": PATCH}]},
        [0, 2],
    ),
    "a sweep": (
        "/v1/encode",
        {"inputs": ["a"], "gates": GATES, "sweep": {"heads": {"1": [3, 7]}}},
        [2, 3, 3],
    ),
    "evidence": (
        "/v1/highlight",
        {"query": "a", "documents": ["a. b."], "method": "alone", "gates": GATES},
        [2] * 3,  # the query, the document and its one sentence
    ),
}


@pytest.mark.parametrize(("path", "asked", "edited"), CHANGES.values(), ids=CHANGES)
async def test_heads_that_are_changed_are_counted_in_every_work(
    client: httpx.AsyncClient,
    batches: list[Sequence[Work]],
    path: str,
    asked: dict[str, Any],
    edited: list[int],
) -> None:
    """So their time is in the price, also that of values which are not known yet."""
    answer = await client.post(path, json=asked)

    assert answer.status_code == 200, answer.text
    assert [work.edited_heads for batch in batches for work in batch] == edited
