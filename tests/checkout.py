"""A copy of this checkout, as a clone of it would be."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def copy_checkout(folder: Path) -> Path:
    """Copy what git has, or would be given, into a folder, and return that."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), names.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder
