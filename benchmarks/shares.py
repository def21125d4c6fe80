"""Which shares of a cosine say what leaving a token or a head out does, and what they cost.

    PYTHONPATH=. python benchmarks/shares.py --publish

Asks a service in this process, with the bundled model, about three kinds of pairs: texts of
tests/model/texts.txt with the one most like them, and those of tests/model/altered.jsonl, a
sentence with and without its negation and with two words swapped. Of each measure:

agreement  of its order of tokens, special ones apart, or of heads, with their order by the score
           lost when each is left out (Spearman, the mean of both sides)
found      how often a token that makes the texts differ, the negation or a swapped word, falls
           further than one that does not, next to the text compared with itself; 0.5 by chance
cost       processor time of a request about two texts of 16, 64 and 256 tokens, in that of one for
           their score alone; the fastest of some calls, in turns
bias       the part of the score that biases carry, by input

with the mean over pairs and its standard error. Controls are a random order, and the model with the
numbers of each matrix shuffled. Writes benchmarks/shares.json; --publish puts the tables into
benchmarks/results.md, which tests/test_shares.py holds to the file.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from publish import replace_between_marks
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from served import machine

from model.loading.files import WEIGHTS
from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, connected

ROOT = Path(__file__).parent.parent
TOLD, PAGE = (ROOT / "benchmarks" / name for name in ("shares.json", "results.md"))
COMMAND = "python benchmarks/shares.py --publish"
TEXTS, ALTERED = (ROOT / "tests" / "model" / name for name in ("texts.txt", "altered.jsonl"))
LEAST_WORDS, LEAST_SCORE = 7, 0.28  # of pairs of TEXTS
KINDS = ("near", "negation", "order")
KIND_NAMES = ("texts alike", "a negation", "two words swapped")
SIDES = ("left", "right")
MASK = 103  # id of the bundled model's [MASK]
LENGTHS = (16, 64, 256)  # tokens of a text
WORDS = ("dog", "house", "river", "green", "book", "walks", "over")  # of one token each
CALLS, SECONDS = 20, 1.0  # that a request is timed: as often at most, as long at least
LAYER, INPUT, OCCLUSION, ALONE = "the default", "by input", "occlusion", "alone"
HEAD, SWEEP = "by head", "sweep"
BODIES: dict[str, dict[str, Any]] = {
    LAYER: {},
    INPUT: {"by": "input"},
    OCCLUSION: {"form": "occlusion"},
    HEAD: {"by": "head"},
    SWEEP: {"form": "score", "sweep": "heads"},
}

TOKEN_ROWS = {  # of the table of tokens, by measure
    LAYER: "the default",
    INPUT: '`"by": "input"`',
    OCCLUSION: '`"form": "occlusion"`',
    "masked": "a mask in the token's place",
    ALONE: '`"method": "alone"` of `POST /v1/highlight`',
    "random": "control: a random order",
    f"{LAYER}, shuffled": "control: the default, weights shuffled",
    f"{INPUT}, shuffled": "control: by input, weights shuffled",
}
HEAD_ROWS = {
    "worth": '`"by": "head"`, `worth`',
    "shares": '`"by": "head"`, both shares',
    SWEEP: '`"sweep": "heads"`',
    "random heads": "control: a random order",
    "worth, shuffled": "control: `worth`, weights shuffled",
}
COST_OF = {"worth": HEAD, "shares": HEAD}  # the request that a row's cost is of

Array = NDArray[np.float64]
Pair = tuple[str, str]
Numbers = Mapping[str, list[Array]]  # by measure: of the tokens of both texts, or of all heads


class Service:
    """A service in this process."""

    def __init__(self, replica: Replica) -> None:
        self._client = connected(application(replica))

    async def ask(self, path: str, **body: Any) -> Any:
        """Return an answer, which must be one."""
        answer = await self._client.post(path, json=body, timeout=None)
        if answer.status_code != 200:
            raise SystemExit(answer.text)
        return answer.json()

    async def compare(self, left: Any, right: Sequence[Any], **body: Any) -> tuple[Any, list[Any]]:
        """Return what is answered of the left text, and of each on the right."""
        told = await self.ask("/v1/similarity", left=left, right=right, **body)
        return told["left"], told["right"]


async def pair_texts(service: Service) -> dict[str, list[Pair]]:
    """Return the pairs of each kind."""
    texts = [line for line in TEXTS.read_text("utf-8").splitlines() if line.strip()]
    told = await service.ask("/v1/encode", inputs=texts)
    vectors = np.array([one["pooled"] for one in told["data"]])
    scores = vectors @ vectors.T - 2 * np.eye(len(texts))
    nearest = sorted({(min(i, j), max(i, j)) for i, j in enumerate(scores.argmax(1).tolist())})
    near = [(texts[i], texts[j]) for i, j in nearest if scores[i, j] >= LEAST_SCORE]
    pairs = {"near": [pair for pair in near if min(map(_count_words, pair)) >= LEAST_WORDS]}
    for row in map(json.loads, ALTERED.read_text("utf-8").splitlines()):
        pairs.setdefault(row["kind"], []).append((row["left"], row["right"]))
    return pairs


def _count_words(text: str) -> int:
    return len(text.split())


async def share_tokens(service: Service, pair: Pair) -> Numbers:
    """Return the shares of the tokens of both texts, special ones apart."""
    found = {}
    for name in (LAYER, INPUT):
        _, (told,) = await service.compare(pair[0], pair[1:], **BODIES[name], specials="drop")
        # by input what a token has with the other text's biases is told apart, and counts too
        found[name] = [
            np.array(told[f"{side}_share"]) + np.array(told.get(f"{side}_bias", 0.0))
            for side in SIDES
        ]
    return found


async def weigh_biases(service: Service, pair: Pair) -> float:
    """Return the part of a score that biases carry, by input."""
    _, (told,) = await service.compare(pair[0], pair[1:], **BODIES[INPUT])
    return float(told["bias"] / told["score"])


async def remove_tokens(service: Service, pair: Pair) -> tuple[Numbers, list[list[str]]]:
    """Return what is lost without each token, and what each scores alone; and the tokens."""
    found = {OCCLUSION: [], "masked": [], ALONE: []}
    left, (right,) = await service.compare(pair[0], pair[1:], **BODIES[OCCLUSION], specials="drop")
    for place, (own, other) in enumerate(((left, right), (right, left))):
        found[OCCLUSION].append(np.array(right[f"{SIDES[place]}_worth"]))
        ids = own["token_ids"]
        masked = [{"token_ids": [*ids[:n], MASK, *ids[n + 1 :]]} for n in own["axis"]]
        _, told = await service.compare({"token_ids": other["token_ids"]}, masked, form="score")
        found["masked"].append(np.array([right["score"] - one["score"] for one in told]))
        body = {"query": pair[1 - place], "documents": [pair[place]], "unit": "token"}
        (one,) = (await service.ask("/v1/highlight", **body, method=ALONE, top=999))["results"]
        by_end = {each["characters"][1]: each["share"] for each in one["highlights"]}
        found[ALONE].append(np.array([by_end[own["offsets"][n][1]] for n in own["axis"]]))
    return found, [[each["tokens"][n] for n in each["axis"]] for each in (left, right)]


async def share_heads(service: Service, pair: Pair) -> Numbers:
    """Return the worth of every head by head, and the sum of its shares."""
    _, (told,) = await service.compare(pair[0], pair[1:], **BODIES[HEAD])
    both = np.ravel(told["left_heads"]) + np.ravel(told["right_heads"])
    return {"worth": [np.ravel(told["worth"])], "shares": [both]}


async def sweep_heads(service: Service, pair: Pair) -> list[Array]:
    """Return the score lost without each head."""
    _, (told,) = await service.compare(pair[0], pair[1:], **BODIES[SWEEP])
    return [-np.array([c for heads in told["sweep"]["change"].values() for c in heads.values()])]


def find_changes(kind: str, left: Sequence[str], right: Sequence[str]) -> list[int]:
    """Return the places of the tokens on the left that make two texts differ."""
    if kind == "negation":
        return [n for n in range(len(left)) if [*left[:n], *left[n + 1 :]] == right][:1]
    return [n for n, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]]


def rate_found(fallen: Array, changed: Sequence[int]) -> float:
    """Return how often a token of the changed ones has fallen further than one of the others."""
    others = np.delete(fallen, changed)[:, None]
    return float(np.mean((np.sign(fallen[changed] - others) + 1) / 2))


def agree(numbers: Sequence[Array], lost: Sequence[Array]) -> float:
    """Return Spearman's correlation of two orders, the mean of both sides."""
    sides = zip(numbers, lost, strict=True)
    return float(np.mean([spearmanr(*side).statistic for side in sides]))


def summarise(numbers: Sequence[float]) -> list[float]:
    """Return a mean and its standard error."""
    return [float(np.mean(numbers)), float(np.std(numbers, ddof=1) / len(numbers) ** 0.5)]


async def measure(service: Service, control: Service) -> dict[str, Any]:
    """Return the pairs of each kind, and the agreement and what is found, by measure and kind."""
    chance, pairs = np.random.default_rng(0), await pair_texts(service)
    agreement, found = (defaultdict[str, Any](lambda: defaultdict(list)) for _ in range(2))
    biases = [await weigh_biases(service, pair) for pair in pairs["near"]]

    async def measure_tokens(pair: Pair) -> tuple[Numbers, list[list[str]]]:
        """Return what each measure says of a pair's tokens, and the tokens."""
        removed, tokens = await remove_tokens(service, pair)
        shuffled = (await share_tokens(control, pair)).items()
        controls = {f"{name}, shuffled": numbers for name, numbers in shuffled}
        controls["random"] = [chance.random(len(side)) for side in tokens]
        return {**removed, **await share_tokens(service, pair), **controls}, tokens

    for kind, pair in [(kind, pair) for kind, each in pairs.items() for pair in each]:
        measures, tokens = await measure_tokens(pair)
        for name, numbers in measures.items():
            agreement[name][kind].append(agree(numbers, measures[OCCLUSION]))
        if kind == "near":
            swept = await sweep_heads(service, pair)
            heads = {"random heads": [chance.random(len(swept[0]))]}
            heads |= await share_heads(service, pair)
            shuffled = (await share_heads(control, pair)).items()
            heads |= {f"{name}, shuffled": numbers for name, numbers in shuffled}
            for name, numbers in heads.items():
                agreement[name][kind].append(agree(numbers, swept))
            continue
        alike, _ = await measure_tokens((pair[0], pair[0]))
        for name, numbers in measures.items():
            fallen = alike[name][0] - numbers[0]
            found[name][kind].append(rate_found(fallen, find_changes(kind, *tokens)))
    return {
        "pairs": {kind: len(each) for kind, each in pairs.items()},
        "agreement": _summarise_all(agreement),
        "found": _summarise_all(found),
        "bias": summarise(biases),
    }


def _summarise_all(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    return {
        name: {kind: summarise(each) for kind, each in kinds.items()}
        for name, kinds in measured.items()
    }


async def time_requests(service: Service) -> dict[str, list[float]]:
    """Return the processor time of each measure's request for each length, in that of a score."""
    costs = defaultdict[str, list[float]](list)
    for length in LENGTHS:
        text = " ".join(WORDS[n % len(WORDS)] for n in range(length - 2))
        bodies = {
            name: {"left": text, "right": [text], **body, "encoding": "base64"}
            for name, body in {"score": {"form": "score"}, **BODIES}.items()
        }
        best = dict.fromkeys(bodies, float("inf"))
        spent = dict.fromkeys(bodies, 0.0)
        for _ in range(CALLS):
            for name, body in bodies.items():
                if spent[name] < SECONDS:
                    begun = time.process_time()
                    await service.ask("/v1/similarity", **body)
                    took = time.process_time() - begun
                    best[name], spent[name] = min(best[name], took), spent[name] + took
        for name in BODIES:
            costs[name].append(best[name] / best["score"])
    return dict(costs)


def shuffle_model(folder: Path) -> None:
    """Write the bundled model into a folder, with the numbers of each matrix in another order."""
    shutil.copytree(locate_model(BUNDLED_MODEL).folder, folder, dirs_exist_ok=True)
    torch.manual_seed(0)
    shuffled = {
        name: each.flatten()[torch.randperm(each.numel())].view(each.shape)
        if each.dim() > 1
        else each
        for name, each in load_file(folder / WEIGHTS).items()
    }
    save_file(shuffled, folder / WEIGHTS)


def format_tables(told: Mapping[str, Any]) -> str:
    """Return what was measured as benchmarks/results.md has it."""
    pairs, cpu = told["pairs"], told["processor"]
    facts = f"{told['date']}, commit {told['commit']}, {cpu['cores']} cores of an {cpu['name']}:"
    kinds = [f"{name} ({pairs[kind]})" for kind, name in zip(KINDS, KIND_NAMES, strict=True)]
    cost = "cost: " + ", ".join(map(str, LENGTHS))
    head = ["tokens", *kinds, "finds the negation", "finds swapped words", cost]
    tokens = [
        [
            title,
            *(_format_agreement(told, name, kind) for kind in KINDS),
            *(_format_mean(told["found"][name][kind]) for kind in KINDS[1:]),
            _format_cost(told, name),
        ]
        for name, title in TOKEN_ROWS.items()
    ]
    heads = [
        [title, _format_agreement(told, name, "near"), _format_cost(told, name)]
        for name, title in HEAD_ROWS.items()
    ]
    tables = _format_table(head, tokens), _format_table(["heads", kinds[0], cost], heads)
    bias = f"Biases carry {_format_mean(told['bias'])} of the score of texts alike, by input."
    return "\n\n".join([facts, *tables, bias])


def _format_agreement(told: Mapping[str, Any], name: str, kind: str) -> str:
    """Return an agreement; that of what all else is compared with is none."""
    return "" if name in (OCCLUSION, SWEEP) else _format_mean(told["agreement"][name][kind])


def _format_mean(summary: Sequence[float]) -> str:
    """Return a mean and its error."""
    return "{:.2f} ± {:.2f}".format(*summary)


def _format_cost(told: Mapping[str, Any], name: str) -> str:
    """Return a measure's costs, if they were measured."""
    costs = told["costs"].get(COST_OF.get(name, name), ())
    return ", ".join(f"{cost:.1f}" if cost < 10 else f"{cost:.0f}" for cost in costs)


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


async def measure_all() -> dict[str, Any]:
    """Return everything that is measured, with what it was measured on."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": machine.current_commit(),
        "processor": machine.describe_processor(),
        "load_averages_at_the_start": machine.load_averages(),
    }
    with tempfile.TemporaryDirectory() as folder:
        shuffle_model(Path(folder))
        replicas = [
            await Replica.start(
                Settings(device="cpu", threads=1, model=name, deadline_seconds=600), name
            )
            for name in (BUNDLED_MODEL, folder)
        ]
        service, control = map(Service, replicas)
        costs = await time_requests(service)
        told = {**facts, "costs": costs, **await measure(service, control)}
        for replica in replicas:
            await replica.close()
    return told


def main() -> None:
    """Measure, keep what was measured, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args()
    told = asyncio.run(measure_all())
    TOLD.write_text(json.dumps(told, indent=1) + "\n")
    tables = format_tables(told)
    print(tables)
    if options.publish:
        replace_between_marks(PAGE, tables, COMMAND)


if __name__ == "__main__":
    main()
