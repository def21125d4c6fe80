"""JSON answers of POST /v1/explain and POST /v1/attend -> arrays by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlight_client.errors import expect_format
from headlight_client.formats import Array
from headlight_client.reprs import with_short_repr


@with_short_repr
@dataclass(frozen=True, slots=True)
class Steps(Mapping[str, Array]):
    """Attention step by step; `steps["scores"]` is an array.

    Args:
        arrays: of /v1/explain x, q, k, v, scores, probabilities, z, concat, projected, normed,
            feed_forward and output, and where requested weights such as q.weight, and eps, in
            float32; of /v1/attend probabilities, heads and concat, in float64.
        facts: other fields of the answer, such as tokens.
    """

    arrays: Mapping[str, Array]
    facts: Mapping[str, Any]

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


@expect_format()
def read_steps(answer: Any) -> Steps:
    """Read the JSON answer of POST /v1/explain or POST /v1/attend.

    Raises:
        NoAnswer: it is not in that format.
    """
    explained = "shapes" in answer
    names, dtype = (answer["shapes"], answer["dtype"]) if explained else (answer, "float64")
    weights = dict(_weights(answer.get("parameters", {})))
    lists = {name: answer[name] for name in names} | weights
    arrays = {name: np.array(numbers, dtype) for name, numbers in lists.items()}
    facts = {name: value for name, value in answer.items() if name not in names}
    for name in ("shapes", "parameters"):
        facts.pop(name, None)
    return Steps(arrays, facts)


def _weights(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the weights of an explained layer by name, such as q.weight, and its eps."""
    for step, parts in parameters.items():
        if isinstance(parts, dict):
            yield from ((f"{step}.{part}", numbers) for part, numbers in parts.items())
        else:
            yield step, parts
