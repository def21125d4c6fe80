"""setup.py: which kinds of processor the compiled pass is built for, by the machine that builds."""

import platform
import re
import runpy
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "model" / "native"
# headers and vectors of one maker's processors
OWN = re.compile(r"(immintrin|arm_neon|arm_sve)\.h|\b_mm\d*_|\b__m\d+|\bv\w+q_f32")


@pytest.mark.parametrize(
    ("machine", "kinds"),
    [("x86_64", ["AVX2", "AVX512"]), ("aarch64", ["NEON"]), ("riscv64", [])],
)
def test_each_machine_builds_the_kinds_of_its_processors(
    machine: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arm64 builds one, with the functions that torch's own kernels call there."""
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)

    built = runpy.run_path(str(ROOT / "setup.py"))

    assert list(built["KINDS"]) == kinds
    if "NEON" in kinds:
        assert built["KINDS"]["NEON"] == ["-DAT_BUILD_ARM_VEC256_WITH_SLEEF"]
        assert "model/native/half.cpp" not in built["EACH"]


def test_only_what_is_for_one_processor_names_its_instructions() -> None:
    """half.cpp, for AVX-512 with bfloat16; all else is written with torch's vectors."""
    sources = [path for path in NATIVE.iterdir() if path.suffix in {".h", ".cpp"}]

    assert {path.name for path in sources if OWN.search(path.read_text())} == {"half.cpp"}
