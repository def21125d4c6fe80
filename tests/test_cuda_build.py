"""torch's build for CUDA, by the lock, without a GPU and without Triton.

Run by `make prove`: once, since it downloads several gigabytes.
"""

import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
LOCKED = ("--no-compile", "--no-deps", "--require-hashes", "--requirement")  # as in the image
LONGEST = 3600  # seconds
PATHS = ("tests/model/test_cuda.py", "tests/service/engine/test_gpu.py")
CUDA = """
import importlib.util, torch
assert importlib.util.find_spec("triton") is None
print(torch.version.cuda, torch.cuda.is_available())
"""


@pytest.mark.prove
def test_the_build_for_cuda_imports_without_a_gpu_and_runs_the_path(tmp_path: Path) -> None:
    """What deploy/torch.sh takes for a GPU; the CUDA path then runs on its own fake tensors."""
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / "bin" / "python"
    first = [python, "-m", "pip", "install", "--quiet", *LOCKED, DEPLOY / "requirements.lock"]
    subprocess.run(first, check=True)
    script = ["sh", DEPLOY / "torch.sh", python]
    asked = subprocess.run(script, timeout=LONGEST, capture_output=True, text=True)
    if "No matching distribution" in asked.stderr:
        pytest.skip("the index has no torch")
    assert asked.returncode == 0, asked.stderr[-2000:]
    subprocess.run([python, "-m", "pip", "uninstall", "--yes", "--quiet", "triton"], check=True)

    told = subprocess.run([python, "-c", CUDA], check=True, capture_output=True, text=True)
    cuda, available = told.stdout.split()
    if cuda == "None":
        pytest.skip("the index offers torch's CPU build, and no build for CUDA")
    assert available == "False"

    site = f"lib/python{sysconfig.get_python_version()}/site-packages"
    others = (
        f"{ROOT}\n{sysconfig.get_path('purelib')}\n"  # after its own, so its own torch is found
    )
    (tmp_path / site / "others.pth").write_text(others)
    command = [python, "-m", "pytest", "-q", "-m", "not ray and not prove", *PATHS]
    held = subprocess.run(
        command, cwd=ROOT, timeout=LONGEST, capture_output=True, text=True, check=False
    )
    assert held.returncode == 0, held.stdout[-2000:]
