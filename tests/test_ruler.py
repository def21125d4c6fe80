"""The ruler counts code, not words."""

from tests.ruler import Size, measure

MODULE = '''"""What it is."""

import os


def count(path):
    """Count."""
    # a reason
    return len(  # another
        os.listdir(path)
    )
'''


def test_docstrings_comments_blank_lines_and_imports_are_no_code() -> None:
    """Nor do they make a function longer."""
    assert measure(MODULE) == Size(lines=4, functions=1)


def test_a_text_that_is_a_value_is_code() -> None:
    """Each of its lines."""
    assert measure('TEXT = """a\nb"""\n') == Size(lines=2, functions=0)
