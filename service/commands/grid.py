"""Layers x heads in a terminal: what each head does, and what the encoding is without it."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from headlight_client.roles import Facts, heads_by_layer, relation_label, role_badge, word_title

CELL_WIDTH = 5  # letters; twelve heads then fit into a terminal of 80
COMMON_ROLES = ("delimiter sink", "broad")  # of most heads, so dimmed
NO_ROLE = "\u00b7"  # in the cell of a head without one


def draw_heads(survey: Facts) -> Table:
    """Return a table of the heads, a row for each layer: the role of each and its score."""
    table = Table(title=word_title(survey), title_justify="left", show_lines=True, padding=0)
    rows = heads_by_layer(survey)
    for name in ("", *(f"H{head['head']}" for head in rows[0])):
        table.add_column(name, justify="center", min_width=CELL_WIDTH)
    for row in rows:
        table.add_row(f"L{row[0]['layer']}", *map(_draw_cell, row))
    return table


def draw_roles(survey: Facts) -> Table:
    """Return a table of the positional roles that heads have, with best head and threshold."""
    columns = ("role", "heads", "best", "its score", "threshold", "uniform head")
    table = Table(*columns, title="By position", title_justify="left")
    for role in survey["thresholds"]:
        members = [head for head in survey["heads"] if head["role"] == role]
        if members:
            best = max(members, key=lambda head: float(head["score"]))
            numbers = [f"{best[name]:.3f}" for name in ("score", "threshold", "baseline")]
            table.add_row(role, str(len(members)), f"L{best['layer']}H{best['head']}", *numbers)
    return table


def draw_mechanisms(survey: Facts) -> Table:
    """Return a table of the heads that have a mechanism, the one with the largest share first."""
    columns = ("head", "query's", "key's", "share", "shuffled")
    table = Table(*columns, title="What layer 0 goes by", title_justify="left")
    found = [head for head in survey["heads"] if head["mechanism"]]
    for head in sorted(found, key=lambda head: -float(head["mechanism"]["share"])):
        told = head["mechanism"]
        numbers = [f"{told[name]:.3f}" for name in ("share", "control")]
        table.add_row(f"L{head['layer']}H{head['head']}", told["query"], told["key"], *numbers)
    return table


def draw_relations(survey: Facts) -> Table:
    """Return a table of the relations, with the head found, or none, and scores on the controls."""
    table = Table(title="Between words", title_justify="left")
    for name in ("relation", "found", "tried", "right", "of", "blind", "needed"):
        table.add_column(name, justify="left" if name in ("relation", "found") else "right")
    for name, verdict in survey["relations"].items():
        shares = (verdict[key] for key in ("score", "baseline", "threshold"))
        right, blind, needed = ("" if share is None else f"{share:.1%}" for share in shares)
        tried = verdict["candidate"] or verdict["reason"], right, str(verdict["controls"])
        table.add_row(relation_label(name, verdict), verdict["found"], *tried, blind, needed)
    return table


def draw_ablations(distances: Sequence[Sequence[float]]) -> Table:
    """Return a table of each layer's heads by their distances, (layers, heads), largest first."""
    table = Table(
        "layer",
        "heads",
        title="1 - cos(encoding, encoding without the head)",
        title_justify="left",
        caption="Compare heads within one layer only: the last layer's output is pooled directly.",
        caption_justify="left",
        show_lines=True,
    )
    for layer, row in enumerate(distances):
        order = sorted(range(len(row)), key=row.__getitem__, reverse=True)
        table.add_row(f"L{layer}", "  ".join(f"H{head}={row[head]:.2g}" for head in order))
    return table


def _draw_cell(head: Facts) -> Text:
    """Return a head's cell: its badge and score, dimmed where the role is common."""
    if head["role"] is None:
        return Text(NO_ROLE, style="dim")
    style = "dim" if head["role"] in COMMON_ROLES else "bold"
    return Text(f"{role_badge(head)}\n{head['score']:.2f}", style=style)
