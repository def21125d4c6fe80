"""`headlight space`: a service's vector space, shown, saved, or compared with a saved one."""

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

SHOWN_CANARIES = 10  # most moved texts that are listed


def print_space(info: Mapping[str, Any], console: Console, *, as_json: bool) -> None:
    """Print the name of a service's space and the facts it is made of, from GET /info."""
    if as_json:
        return print_now(sys.stdout, json.dumps({name: info[name] for name in SPACE_FACTS}))
    console.print(info["space"], soft_wrap=True)
    for name, value in info["space_parts"].items():
        console.print(strip_control(f"  {name:12} {value!r}"), soft_wrap=True)


def save_space(client: Client, path: Path) -> str:
    """Save a service's space with its canary vectors to a file; return the space's name.

    Raises:
        Unusable: the file is there already.
    """
    if path.exists():
        raise Unusable(f"{path} already exists; remove it or choose another file")
    space = client.space()
    space.write(path)
    return str(space.facts["space"])


def recheck_space(client: Client, path: Path) -> Checked:
    """Compute the canary vectors of a saved space again and compare them.

    Raises:
        Unusable: the file is no saved space.
    """
    try:
        return client.check_space(Space.read(path))
    except ValueError as error:
        raise Unusable(str(error)) from error


def print_comparison(checked: Checked, console: Console, *, as_json: bool) -> None:
    """Print whether a service's vectors are still those of a saved space, and which moved."""
    if as_json:
        moved = [{"text": text, "distance": distance} for text, distance in checked.moved]
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
        for text, distance in checked.moved[:SHOWN_CANARIES]:
            console.print(strip_control(f"  {distance:.4f}  {text}"), soft_wrap=True)
