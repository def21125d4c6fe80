"""The ruler counts code, not words; and the way of a request grows no longer."""

import json
import subprocess
import sys

from tests.ruler import ROOT, Size, measure

# Of one short request in service/, where no processor chooses the way (a timer makes two functions
# of difference); these may only fall
MOST_FILES, MOST_FUNCTIONS, MOST_SHAPES = 47, 186, 11

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


WALK = """
import asyncio, json
from tests.ruler import walk
way = asyncio.run(walk())
print(json.dumps([sorted(way.functions), len(way.shapes())]))
"""


def test_a_short_request_passes_no_more_than_it_did() -> None:
    """Files, functions and shapes: who adds one for every text takes another away."""
    # a process of its own: others' replicas run functions of ours as well
    ran = subprocess.run(
        [sys.executable, "-c", WALK], cwd=ROOT, capture_output=True, text=True, check=True
    )

    functions, shapes = json.loads(ran.stdout.splitlines()[-1])
    passed = [path for path, _ in functions if path.startswith("service/")]
    counted, most = (len({*passed}), len(passed), shapes), (MOST_FILES, MOST_FUNCTIONS, MOST_SHAPES)
    assert all(now <= limit for now, limit in zip(counted, most, strict=True)), counted
