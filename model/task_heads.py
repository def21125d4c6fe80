"""Task heads: what follows the encoder, and maps one sequence's token vectors to an answer.

    Classifier  a logit for each class of a text or pair; with one class it ranks
    Tagger      a logit for each label of each token
    Splade      a weight for each token of the vocabulary (Formal et al. 2021, "SPLADE v2")
    Lexical     a weight for each of the text's own tokens (Chen et al. 2024, "M3-Embedding")
    VectorHead  a vector for each token that is kept (Khattab and Zaharia 2020, "ColBERT: Efficient
                and Effective Passage Search via Contextualized Late Interaction over BERT")
    Decider     a logit for each option of a question that the sequence holds: see decider.py

A sequence is computed alone, so that it has the same bits in any batch; only on a GPU a Classifier
takes all of a batch together. What a request may choose is a field, to be replaced: activation, k,
threshold. All is float32, for any dtype of the encoder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Side, Task
from model.decider import Decider
from model.packing import send
from model.pooling import Pooling, pool_sequence, pool_together
from model.projection import Projection
from model.text.frame import Role

# the names that requests and answers give
ScoreActivation = Literal["softmax", "sigmoid", "none"]  # logits -> scores

TILE_ROWS = 64  # tokens whose logits over the vocabulary are in memory at once
NUMBER_SIZE = 4  # bytes of an index or a float32


class TokenHead:
    """A task head that projects every token."""

    __slots__ = ()
    project: Projection

    def count_flops(self, tokens: int) -> int:
        """Count the floating-point operations for so many tokens."""
        return self.project.count_flops(tokens)


@dataclass(frozen=True, slots=True)  # equal ones classify together, whichever request asks
class Classifier:
    """Scores the classes of a whole sequence.

    Args:
        labels: a name for each class, in the checkpoint's order.
        pooling: which vector is classified, such as the first token's, or the mean of all.
        project: maps that vector to logits.
        activation: maps logits to scores.
        ranking: the same for a pair that is ranked, as in a CrossEncoder.
        entailment: the class of a pair whose first text entails the second; None: there is none.
    """

    labels: tuple[str, ...]
    pooling: Pooling
    project: Projection
    activation: ScoreActivation
    ranking: ScoreActivation
    entailment: int | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks that the head serves; with a single class it also ranks."""
        if len(self.labels) == 1:
            return ("classify", "rerank")
        return ("classify",) if self.entailment is None else ("classify", "zero_shot")

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Classify (tokens, width) -> logits and scores, (classes,) each."""
        logits = self.project(pool_sequence(tokens, self.pooling)[None])[0]
        return {"logits": logits, "scores": activate_scores(logits, self.activation)}

    def classify_together(self, tokens: Tensor, rows: Sequence[slice]) -> dict[str, Tensor]:
        """Classify some sequences of a batch, (rows, width), in as many operations as one takes.

        Returns:
            Logits and scores, (sequences, classes) each, whose last bits differ from `__call__`'s.
        """
        logits = self.project(pool_together(tokens, rows, self.pooling))
        return {"logits": logits, "scores": activate_scores(logits, self.activation)}

    def count_bytes(self, tokens: int, number: int = NUMBER_SIZE) -> int:
        """Count the bytes of an answer: two numbers and a name for each class."""
        return sum(2 * NUMBER_SIZE + len(label) for label in self.labels)

    def count_flops(self, tokens: int) -> int:
        """Count the floating-point operations for a sequence of so many tokens."""
        return self.project.count_flops(1)


@dataclass(frozen=True, slots=True, eq=False)
class Tagger(TokenHead):
    """Labels every token.

    Args:
        labels: their names, in the checkpoint's order.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("label_tokens",)  # that the head serves

    labels: tuple[str, ...]
    project: Projection  # maps token vectors to logits

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Tag (tokens, width) -> the best label's index and its probability, (tokens,) each."""
        probabilities, labels = self.project(tokens).softmax(-1).max(-1)
        return {"labels": labels.int(), "scores": probabilities}

    def count_bytes(self, tokens: int, number: int = NUMBER_SIZE) -> int:
        """Count the bytes of an answer at most: a number and a name for each of so many tokens."""
        return tokens * (NUMBER_SIZE + max(map(len, self.labels)))


@dataclass(frozen=True, slots=True, eq=False)
class Splade(TokenHead):
    """Weighs the vocabulary's tokens: max or sum over the text's tokens of log(1 + relu).

    Args:
        pooling: over the text's tokens.
        log_twice: whether it is log(1 + log(1 + relu)), as in OpenSearch's models.
        k: how many of the largest weights are kept; None: all.
        threshold: only weights above it are kept.
        roles: how queries and documents are read; without "query" in a checkpoint that looks
            queries up in a table, which is not read.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("sparse",)  # that the head serves

    project: Projection  # maps token vectors to logits over the vocabulary
    pooling: Literal["max", "sum"]
    log_twice: bool
    k: int | None = None
    threshold: float = 0.0
    roles: Mapping[Side, Role] = field(default_factory=dict)

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Weigh (tokens, width) -> the ids with a weight, ascending, and weights, (ids,) each."""
        weights = self.vocabulary_weights(tokens)
        indices = _choose_weights(weights, self.k, self.threshold)
        return {"indices": indices.int(), "values": weights[indices]}

    def vocabulary_weights(self, tokens: Tensor) -> Tensor:
        """Return the weight of every token of the vocabulary, (vocabulary,)."""
        tiles = (self.project(tile) for tile in torch.split(tokens, TILE_ROWS))
        if self.pooling == "sum":
            return torch.stack([self._weigh(tile).sum(0) for tile in tiles]).sum(0)
        largest = next(tiles).amax(0)
        for tile in tiles:
            largest = torch.maximum(largest, tile.amax(0))
        return self._weigh(largest)  # it grows with the logit: the largest gives the largest

    def count_bytes(self, tokens: int, number: int = NUMBER_SIZE) -> int:
        """Count the bytes of an answer at most: an id and a weight for each token kept."""
        return 2 * NUMBER_SIZE * min(self.k or self.project.outputs, self.project.outputs)

    def _weigh(self, logits: Tensor) -> Tensor:
        """Return the weights of logits, of the same shape."""
        weights = logits.relu().log1p()
        return weights.log1p() if self.log_twice else weights


@dataclass(frozen=True, slots=True, eq=False)
class Lexical(TokenHead):
    """Weighs a text's own tokens: each id by the largest relu(w x + b) of its tokens.

    Args:
        project: maps each token to one number.
        unused: ids without a weight, those of special tokens.
        k: how many of the largest weights are kept; None: all.
        threshold: only weights above it are kept.
        token_ids: of the sequence that is weighed.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("sparse",)  # that the head serves

    project: Projection
    unused: frozenset[int]
    k: int | None = None
    threshold: float = 0.0
    token_ids: Sequence[int] = ()

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Weigh (tokens, width) -> the ids with a weight, ascending, and weights, (ids,) each."""
        used = [place for place, id in enumerate(self.token_ids) if id not in self.unused]
        distinct = sorted({self.token_ids[place] for place in used})
        index_of_id = {id: index for index, id in enumerate(distinct)}
        indices = [index_of_id[self.token_ids[place]] for place in used]
        # computed on the host, where the ids are: no wait for the device
        ids, groups, places = (
            send(torch.tensor(numbers, dtype=torch.long), tokens.device)
            for numbers in (distinct, indices, used)
        )
        weights = tokens.new_zeros(len(distinct), dtype=torch.float32)  # no weight is below 0
        weights = weights.scatter_reduce(0, groups, self.token_weights(tokens)[places], "amax")
        chosen = _choose_weights(weights, self.k, self.threshold)
        return {"indices": ids[chosen].int(), "values": weights[chosen]}

    def token_weights(self, tokens: Tensor) -> Tensor:
        """Return the weight of each token, special or not, (tokens,)."""
        return self.project(tokens)[:, 0].relu()

    def count_bytes(self, tokens: int, number: int = NUMBER_SIZE) -> int:
        """Count the bytes of an answer at most: an id and a weight for each of so many tokens."""
        return 2 * NUMBER_SIZE * min(self.k or tokens, tokens)


@dataclass(frozen=True, slots=True, eq=False)
class VectorHead:
    """Maps each token kept to a vector of length 1, for late interaction.

    Args:
        project: maps each token's vector.
        roles: how queries and documents are read.
        kept: places of the tokens that get a vector; None: all from `first_place` on.
        first_place: place of the first token that gets a vector.
        mean: whether a score is the mean over the query's vectors, not the sum.
    """

    tasks: ClassVar[tuple[Task, ...]] = ("multi_vector",)  # that the head serves

    project: Projection
    roles: Mapping[Side, Role]
    kept: Sequence[int] | None = None
    first_place: int = 0
    mean: bool = False

    @property
    def size(self) -> int:
        """Return the size of a vector."""
        return self.project.outputs

    def vector_bytes(self, number: int = NUMBER_SIZE) -> int:
        """Return the bytes of one vector and its token's place, at `number` bytes per number."""
        return number * self.size + NUMBER_SIZE

    @property
    def longest(self) -> int:
        """Return the most tokens that a query or a document may have."""
        return max(role.length for role in self.roles.values())

    def __call__(self, tokens: Tensor) -> dict[str, Tensor]:
        """Map (tokens, width) -> vectors, (kept, size), and the places of their tokens, (kept,)."""
        every = torch.arange(min(self.first_place, len(tokens)), len(tokens))
        kept = every if self.kept is None else torch.tensor(self.kept)
        places = send(kept.int(), tokens.device)
        if not len(kept):
            return {"vectors": tokens.new_zeros(0, self.size).float(), "kept": places}
        vectors = F.normalize(self.project(tokens[places.long()]), dim=1)
        return {"vectors": vectors, "kept": places}

    def count_vectors(self, tokens: int) -> int:
        """Count the vectors of a sequence of so many tokens."""
        return max(0, tokens - self.first_place) if self.kept is None else len(self.kept)

    def count_bytes(self, tokens: int, number: int = NUMBER_SIZE) -> int:
        """Count the bytes of an answer for so many tokens, at `number` bytes per number."""
        return self.count_vectors(tokens) * self.vector_bytes(number)

    def count_flops(self, tokens: int) -> int:
        """Count the floating-point operations for a sequence of so many tokens."""
        return self.project.count_flops(self.count_vectors(tokens))


# tokens -> answer's tensors
TaskHead = Classifier | Tagger | Splade | Lexical | VectorHead | Decider


def _choose_weights(weights: Tensor, k: int | None, threshold: float) -> Tensor:
    """Return the places of the k largest weights above a threshold, ascending, (chosen,)."""
    places = (~(weights <= threshold)).nonzero()[:, 0]  # NaN stays, to be detected
    if k is None or len(places) <= k:
        return places
    # of equal weights the one of the lower id is kept, on any machine
    order = weights[places].sort(descending=True, stable=True).indices[:k]
    return places[order].sort().values


def activate_scores(logits: Tensor, activation: ScoreActivation) -> Tensor:
    """Apply an activation to logits, (.., classes)."""
    if activation == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if activation == "sigmoid" else logits


class Matches(NamedTuple):
    """The best match of each of a query's vectors in a document, and the score of all.

    Args:
        score: the sum of the values, or their mean.
        places: of the document's vector that matches best, the first of equal ones, (query,).
        values: its product with the query's vector, (query,) float64.
    """

    score: float
    places: Tensor
    values: Tensor


def match_vectors(query: Tensor, document: Tensor, mean: bool = False) -> Matches:
    """Match a query's vectors, (query, size), with a document's one or more, (document, size).

    The score is MaxSim, summed in float64.

    Args:
        mean: whether the score is divided by the number of the query's vectors.
    """
    values, places = (query.double() @ document.double().T).max(1)
    return Matches(float(values.mean() if mean else values.sum()), places, values)
