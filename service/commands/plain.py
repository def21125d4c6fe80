"""Names and texts of others on a terminal, as they are."""

import re

from rich.text import Text

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # what moves a terminal, but for line ends


def plain(text: str) -> Text:
    """A text without markup, and with nothing that a terminal obeys."""
    return Text(CONTROL.sub("\ufffd", text))
