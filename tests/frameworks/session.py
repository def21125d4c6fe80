"""One example of docs/frameworks.md, run with the client that it is of.

    python session.py CODE NAMES

NAMES is a JSON list of what the example begins with. For each entry it prints, as JSON, the
answers by their names on the page, or the error.
"""

import contextlib
import json
import os
import sys

ANSWERS = ("vectors", "bits", "ranked", "similarities", "classes")


def run(code: str, names: dict[str, object]) -> dict[str, object]:
    """The answers to some texts."""
    try:
        exec(code, names)
    except Exception as error:
        return {"error": type(error).__name__, "says": str(error)}
    return {name: names[name] for name in ANSWERS if name in names}


if __name__ == "__main__":
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        answers = [run(sys.argv[1], names) for names in json.loads(sys.argv[2])]
    print(json.dumps(answers))
