"""Names and texts of others on a terminal."""

import io

from rich.console import Console
from rich.table import Table

from service.commands.terminal import strip_control


def test_what_others_wrote_is_neither_markup_nor_obeyed() -> None:
    """A vocabulary may hold [unused0] and [/b], a text an escape; the lines of a text stay."""
    grid = Table.grid()
    grid.add_row(strip_control("[unused0] [/b]\x1b[2J\nnext\x07"))
    console = Console(file=io.StringIO(), record=True)

    console.print(grid)

    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines == ["[unused0] [/b]\ufffd[2J", "next\ufffd"]
