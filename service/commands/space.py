"""A running service's space: shown, saved, and checked against an earlier day."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from headlight_client import Checked, Client, Space
from headlight_client.spaces import SPACE_FACTS
from service.commands.terminal import Unusable, print_now, strip_control

SHOWN_CANARIES = 10  # texts that moved


def print_space(info: Mapping[str, Any], console: Console, *, as_json: bool) -> None:
    """Print the name of the space, and what decides it."""
    if as_json:
        return print_now(sys.stdout, json.dumps({name: info[name] for name in SPACE_FACTS}))
    console.print(info["space"], soft_wrap=True)
    for name, value in info["space_parts"].items():
        console.print(strip_control(f"  {name:12} {value!r}"), soft_wrap=True)


def save_space(client: Client, path: Path) -> str:
    """Save the space with its canaries; return its name.

    Raises:
        Unusable: the file is there already.
    """
    if path.exists():
        raise Unusable(f"{path} already exists; remove it or choose another file")
    space = client.space()
    space.write(path)
    return str(space.facts["space"])


def recheck_space(client: Client, path: Path) -> Checked:
    """Compute the canaries of a saved space again.

    Raises:
        Unusable: the file is no saved space.
    """
    try:
        return client.check_space(Space.read(path))
    except ValueError as error:
        raise Unusable(str(error)) from error


def print_comparison(checked: Checked, console: Console, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        moved = [{"text": text, "distance": far} for text, far in checked.moved]
        facts = {"verdict": checked.verdict, "texts": len(checked.texts), "bound": checked.bound}
        return print_now(
            sys.stdout, json.dumps({**facts, "changed": checked.changed, "moved": moved})
        )
    count, furthest = len(checked.texts), float(np.max(checked.distances))
    for name, (saved, now) in checked.changed.items():
        console.print(
            strip_control(f"{name}: {saved!r} was saved, and it is {now!r} now"), soft_wrap=True
        )
    if checked.bits:
        console.print(f"{count} vectors: the same bits")
    elif not checked.moved:
        console.print(f"{count} vectors: the same, within {furthest:.1e} of their length")
    else:
        beyond, bound = len(checked.moved), checked.bound
        console.print(f"{beyond} of {count} vectors moved beyond {bound:g} of their length:")
        for text, far in checked.moved[:SHOWN_CANARIES]:
            console.print(strip_control(f"  {far:.4f}  {text}"), soft_wrap=True)
