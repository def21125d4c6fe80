"""No number of cores, no company and no choice of heads moves a bit of a map or a form of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.encoder import Encoded
from model.loading.checkpoint import Model
from model.maps import forms
from model.maps.forms import Selection
from model.maps.units import Units, divide_into_units
from model.packing import Sequence

LENGTHS = [13, 61, *(pytest.param(each, marks=pytest.mark.prove) for each in (4, 131, 300))]
COMPANY = [[101, 1037, 1038, 102]] * 3  # "a b"
FORMS: dict[str, dict[str, Any]] = {
    "full": {"form": "full"},
    "top by value": {"form": "top", "k": 5, "weight": "value_norm"},
    "dominance": {"form": "dominance", "weight": "value_norm"},
    "blocks": {"form": "blocks", "size": 5},
    "rows": {"form": "rows", "rows": (2, 0)},
    "mean": {"form": "mean", "segments": ((1, 2), (4,))},
    "stats": {"form": "stats", "cls": 0},
    "rollout": {"form": "rollout"},
}
AVERAGED = ("full", "top by value", "blocks", "rows", "mean")  # forms of the mean of heads, too


def words(tokens: int) -> Units:
    """Words of two tokens between special ones, which are made up for."""
    of_token = [None, *(place // 2 for place in range(tokens - 2)), None]
    special = [word is None for word in of_token]
    return divide_into_units(
        tokens, level="word", specials="renormalize", words=of_token, special=special
    )


def traced(model: Model, ids: list[int], company: list[list[int]] | None = None) -> Encoded:
    """A pass that keeps layer 3's attention; the text comes first."""
    with torch.inference_mode():
        packed = model.encoder.pack([Sequence(each) for each in (ids, *(company or []))])
        return model.encoder(packed, traces={3})


def shown(encoded: Encoded, asked: Selection) -> dict[str, Tensor]:
    """The arrays of layer 3 and of all heads, by name."""
    with torch.inference_mode():
        made = forms.show(encoded.traces, encoded.packed.rows(0), asked)
    return made.heads.get(3, {}) | {f"whole {name}": array for name, array in made.whole.items()}


def moved(one: dict[str, Tensor], other: dict[str, Tensor], heads: list[int] | None = None) -> int:
    """How many numbers differ, of some heads of the first; NaN is as NaN."""
    count = 0
    for name, array in one.items():
        if heads is not None and name.startswith("whole"):
            continue  # of other heads it is another map
        some = array if heads is None else array[heads]
        count += int((some.nan_to_num(9.0) != other[name].nan_to_num(9.0)).sum())
    return count


@pytest.mark.parametrize("units", [divide_into_units, words], ids=["tokens", "words"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_neither_cores_nor_company_nor_other_heads_move_a_bit(
    model: Model, threads: Callable[[int], None], tokens: int, units: Callable[[int], Units]
) -> None:
    """Of every form, at the level of tokens and of words."""
    ids = [101, *(2000 + 7 * place for place in range(tokens - 2)), 102]
    passes = {"1 core": traced(model, ids), "company": traced(model, ids, COMPANY)}
    threads(2)
    passes["2 cores"] = traced(model, ids)
    for name, form in FORMS.items():
        cut = units(tokens)
        fields = form | ({"rows": (cut.axis[-1], cut.axis[0])} if name == "rows" else {})
        every, found = Selection({3: tuple(range(12))}, cut, **fields), dict[str, int]()
        threads(1)
        whole = shown(passes["1 core"], every)
        found["company"] = moved(whole, shown(passes["company"], every))
        for heads in ([5], [3, 7, 11]):
            some = shown(passes["1 core"], Selection({3: tuple(heads)}, cut, **fields))
            found[f"{heads}"] = moved(whole, some, heads)
        threads(2)
        found["2 cores"] = moved(whole, shown(passes["2 cores"], every))
        if name in AVERAGED:
            mean = Selection({3: tuple(range(12))}, cut, **fields, averaged=True)
            ours = shown(passes["2 cores"], mean)
            threads(1)
            for company, encoded in passes.items():
                found[f"mean of heads, {company}"] = moved(ours, shown(encoded, mean))

        assert not any(found.values()), (name, found)


def test_one_heads_sums_of_a_long_text_are_not_divided_among_cores(
    model: Model, threads: Callable[[int], None]
) -> None:
    """A tile of 128 rows of 300 keys is more than torch gives one core."""
    encoded = traced(model, [2000 + place for place in range(300)])
    asked = Selection({3: (5,)}, divide_into_units(300), form="stats", cls=0)
    whole = shown(encoded, asked)

    threads(2)

    assert moved(whole, shown(encoded, asked)) == 0


@pytest.mark.prove
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_nor_do_they_with_another_width_of_vectors(capability: str) -> None:
    """Of all that this processor has; its widest where it has no wider."""
    command = [sys.executable, "-m", "pytest", "-q", "-k", "neither or divided", __file__]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    root = Path(__file__).parents[3]
    ran = subprocess.run(command, env=environment, cwd=root, capture_output=True, check=False)

    assert ran.returncode == 0, ran.stdout.decode()[-2000:]
