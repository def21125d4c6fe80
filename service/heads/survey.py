"""A corpus through a model -> what each of its heads does: the body of GET /v1/heads.

Sentences go in small batches, one after the other, so that other requests for the model get a turn
between them. What heads go by needs no pass: it is measured by layer 0 alone, on one core, in
threads that take turns, next to the requests. Nothing admits it, but it is bounded by the corpus.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from model import packing
from model.attention.reach import Reach
from model.heads import relations, roles
from model.heads.mechanisms import DRAWS, Mechanism, MechanismTally
from model.heads.relations import Link, Verdict
from model.heads.roles import HeadRole, RoleTally
from model.loading.checkpoint import Model
from model.maps.forms import Selection
from model.maps.units import divide_into_units
from model.probes import Maps
from model.text.frame import Tokenized
from service.heads.sentences import Corpus, Sentence
from service.shapes.work import Outputs, Result, Work

BATCH_SENTENCES = 16  # sentences; a large model's maps of them are some megabytes
EXPLAINED_SENTENCES = 60  # at most, spread over the corpus: each is explained 1 + DRAWS times
DECIMAL_PLACES = 4  # of a number in the answer
NO_HEAD = "no head found"  # in place of a relation's head

# the kind that each relation of the bundled corpus belongs to
KIND_OF_RELATION = {
    "coreference": "coreference",
    "negation": "grammar",
    "agreement": "grammar",
    "preposition": "syntax",
    "object": "syntax",
}


# Runs works and returns their results
RunWorks = Callable[[Sequence[Work]], Awaitable[Sequence[Result]]]


async def survey_heads(
    model: Model,
    name: str,
    corpus: Corpus,
    run: RunWorks,
    thresholds: Mapping[str, float] = roles.THRESHOLDS,
) -> dict[str, Any]:
    """Measure every head of a model on a corpus; return the answer of GET /v1/heads.

    Args:
        name: what the answer calls the model.
        run: runs the sentences of a batch.

    Raises:
        SequenceTooLong: a sentence exceeds the model; `index` is its place in the corpus.
    """
    config = model.encoder.config
    texts = [(sentence.text,) for sentence in corpus.sentences]
    sequences = await asyncio.to_thread(model.tokenizer, texts, model.max_tokens)
    reaches = [
        config.reach_of_layer(layer) for layer in range(config.layers) for _ in range(config.heads)
    ]
    evidence = SurveyEvidence(reaches, corpus.relations, config.heads)
    for first in range(0, len(sequences), BATCH_SENTENCES):
        batch = sequences[first : first + BATCH_SENTENCES]
        results = await run([_ask_for_maps(model, sequence) for sequence in batch])
        attended = [*map(_stack_maps, results)]
        told = corpus.sentences[first : first + BATCH_SENTENCES]
        await asyncio.to_thread(evidence.add_sentences, told, batch, attended)
    spread = sequences[:: math.ceil(len(sequences) / EXPLAINED_SENTENCES)]
    tally = MechanismTally(
        model.encoder, [packing.Sequence(each.token_ids, each.types) for each in spread]
    )
    for draw in range(1 + DRAWS):
        await asyncio.to_thread(_add_draw, tally, draw)
    return {
        "model": name,
        "weights": model.digest,
        "corpus": corpus.describe(),
        **evidence.answer(thresholds, tally.mechanisms()),
    }


def _ask_for_maps(model: Model, sequence: Tokenized) -> Work:
    """Return the work of a sequence that shows the maps of all heads."""
    layers, every = range(model.config.layers), tuple(range(model.config.heads))
    shown = Selection(dict.fromkeys(layers, every), divide_into_units(len(sequence.token_ids)))
    return Work(
        packing.Sequence(sequence.token_ids, sequence.types), Outputs(probes=(Maps(shown),))
    )


def _stack_maps(result: Result) -> Tensor:
    """Return a sequence's maps of all heads, layer by layer, (heads, query, key)."""
    heads = result.made[Maps.name]["heads"]
    return torch.cat([torch.from_numpy(heads[layer]["map"]) for layer in heads])


def _add_draw(tally: MechanismTally, draw: int) -> None:
    """Add a draw in the calling thread, on one core."""
    torch.set_num_threads(1)  # in this thread, so that it opens no OpenMP region; see lanes.py
    with torch.inference_mode():
        tally.add_draw(draw)


class SurveyEvidence:
    """The evidence for roles and relations of all heads, gathered sentence by sentence.

    Args:
        reaches: how far each head may look, layer by layer.
        names: of the relations.
        heads: how many a layer has.
    """

    def __init__(self, reaches: Sequence[Reach], names: Sequence[str], heads: int) -> None:
        self._heads, self._tally = heads, RoleTally(reaches)
        self._links: dict[str, list[Link]] = {name: [] for name in names}

    def add_sentences(
        self,
        sentences: Sequence[Sentence],
        sequences: Sequence[Tokenized],
        attended: Sequence[Tensor],
    ) -> None:
        """Add some sentences, each with its maps."""
        torch.set_num_threads(1)  # in this thread, so that it opens no OpenMP region; see lanes.py
        for sentence, tokenized, maps in zip(sentences, sequences, attended, strict=True):
            self._tally.add_sentence(maps, tokenized.special)
            words = relations.words_of_tokens(sentence.words, tokenized.offsets, tokenized.special)
            if words is not None:
                self._links[sentence.relation].append(_judge_sentence(maps, words, sentence))

    def answer(
        self, thresholds: Mapping[str, float], mechanisms: Sequence[Mechanism | None]
    ) -> dict[str, Any]:
        """Return roles and mechanisms of all heads, and the relations behind some of them.

        Args:
            mechanisms: of the heads of layer 0.
        """
        heads, by_head = self._heads, dict(enumerate(mechanisms))
        verdicts = {
            relation: relations.judge_relation(links)
            if links
            else Verdict(None, relations.NO_WORDS)
            for relation, links in self._links.items()
        }
        entries = [
            {
                "layer": number // heads,
                "head": number % heads,
                **_label_roles(
                    _relations_of_head(verdicts, number)
                    + roles.find_roles(measures, baseline, thresholds)
                ),
                "mechanism": _to_json(mechanism) if (mechanism := by_head.get(number)) else None,
                "measures": {name: _round(value) for name, value in measures.items()},
            }
            for number, (measures, baseline) in enumerate(self._tally.measures())
        ]
        return {
            "thresholds": dict(thresholds),
            "margin": relations.BEST_MARGIN,
            "heads": entries,
            "relations": {name: _verdict_to_json(name, verdicts[name], heads) for name in verdicts},
        }


def _judge_sentence(maps: Tensor, words: Sequence[int | None], sentence: Sentence) -> Link:
    """Return for which heads, by their maps, a sentence's source attends most to its target."""
    right = relations.most_attended_words(maps, words, sentence.source) == sentence.target
    return Link(
        sentence.control,
        sentence.group,
        sentence.target,
        sentence.target - sentence.source,
        tuple(right.tolist()),
    )


def _relations_of_head(verdicts: Mapping[str, Verdict], head: int) -> list[HeadRole]:
    """Return the relations that a head was found for, the one it most exceeds chance in first."""
    matches = [
        HeadRole(name, verdict.score, verdict.threshold, verdict.baseline)
        for name, verdict in verdicts.items()
        if verdict.head == head
    ]
    return sorted(matches, key=lambda role: role.baseline - role.score)


def _label_roles(all_roles: Sequence[HeadRole]) -> dict[str, Any]:
    """Return a head's first role with its scores, or None in their place, and its other roles."""
    entries = [*map(_to_json, all_roles)]
    none = dict.fromkeys(("role", "score", "threshold", "baseline"))
    first, *others = entries or [none]
    return {**first, "also": others}


def _verdict_to_json(relation: str, verdict: Verdict, heads: int) -> dict[str, Any]:
    """Return a relation's verdict as in the answer."""

    def head_name(number: int | None) -> str | None:
        """Return a head's name, such as L5H11."""
        return None if number is None else "L{}H{}".format(*divmod(number, heads))

    return {
        "kind": KIND_OF_RELATION.get(relation),
        "found": head_name(verdict.head) or NO_HEAD,
        **_to_json(verdict),
        "head": head_name(verdict.head),
        "candidate": head_name(verdict.candidate),
    }


def _to_json(found: HeadRole | Mechanism | Verdict) -> dict[str, Any]:
    """Return what was found as in the answer, its numbers with a fraction rounded."""
    values = asdict(found).items()
    return {name: _round(value) if isinstance(value, float) else value for name, value in values}


def _round(value: float) -> float | None:
    """Return a number rounded as in the answer; None for NaN, where nothing was measured."""
    return None if math.isnan(value) else round(value, DECIMAL_PLACES)
