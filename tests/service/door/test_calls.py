"""How many calls of Python a short request takes, from its parsed head to its answer."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
# Of one text, on the bundled model and uvloop; these may only fall
MOST_CALLS = {"encode": 243, "embeddings": 258, "embed": 248}

COUNT = """
import json, uvloop
from front import measure
print(json.dumps({name: calls for name, (_, calls) in uvloop.run(measure(1)).items()}))
"""


def test_a_text_takes_no_more_calls_than_it_did() -> None:
    """Who adds one for every request takes another away."""
    # a process of its own: others' profilers and replicas would be counted as well
    ran = subprocess.run(
        [sys.executable, "-c", COUNT],
        cwd=ROOT / "benchmarks",
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    calls = json.loads(ran.stdout.splitlines()[-1])
    assert {name: most for name, most in MOST_CALLS.items() if calls[name] > most} == {}, calls
