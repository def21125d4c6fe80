"""Builds the compiled forward pass, where a C++ compiler and torch are at hand.

Where they are not, Headlight is installed without it, and its loop over layers serves
(docs/deploy.md). Everything else stands in pyproject.toml.
"""

import platform
import runpy
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
NAMING = runpy.run_path(str(HERE / "model" / "native" / "__init__.py"))

HEADERS = sorted(str(path.relative_to(HERE)) for path in HERE.glob("model/native/*.h"))
# what is compiled once for each kind of processor, and chosen when it runs; the lesser comes first,
# so that an inline function of a header that both hold is the lesser's; elsewhere its twin serves
EACH = ("model/native/single.cpp", "model/native/rows.cpp")
HALF = ("model/native/half.cpp",)  # for AVX-512 with bfloat16 alone
AVX = {
    "AVX2": ["-mavx2", "-mfma", "-mf16c"],
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"],
}
# every arm64 has it; the name makes torch's vectors call the functions that torch's own kernels do
ARM = {"NEON": ["-DAT_BUILD_ARM_VEC256_WITH_SLEEF"]}
FLAGS = [
    "-O3",
    "-ffp-contract=off",  # a product and a sum are two roundings where they stand so
    "-Wno-unknown-pragmas",  # of torch's and g++'s own headers, as the next
    "-Wno-maybe-uninitialized",
]
MACHINES = {"x86_64": AVX, "amd64": AVX, "aarch64": ARM}
KINDS = MACHINES.get(platform.machine().lower(), {})


class Build(build_ext):
    """Compiles EACH too, by each of KINDS."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of an extension's file, without a Python: torch opens it, not Python."""
        return f"{Path(*fullname.split('.'))}.so"

    def build_extension(self, extension: Extension) -> None:
        """Compile and link one extension."""
        for kind, flags in KINDS.items():
            self._compile(extension, EACH, kind, flags)
        if "AVX512" in KINDS:
            self._compile(extension, HALF, "AVX512", [*KINDS["AVX512"], "-mavx512bf16"])
        super().build_extension(extension)

    def _compile(
        self, extension: Extension, files: tuple[str, ...], kind: str, flags: list[str]
    ) -> None:
        """Compile files for a kind of processor, to be linked with the rest."""
        names = [f"-DCPU_CAPABILITY={kind}", f"-DCPU_CAPABILITY_{kind}"]
        extension.extra_objects += self.compiler.compile(
            list(files),
            output_dir=str(Path(self.build_temp, kind)),
            include_dirs=extension.include_dirs,
            extra_postargs=[*extension.extra_compile_args, *FLAGS, *names, *flags],
        )


class Wheel(bdist_wheel):
    """One for every Python: the operator calls torch's C++ alone, and nothing of Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, of its binary interface and of the platform."""
        return "py3", "none", super().get_tag()[2]


def operator() -> list[Extension]:
    """Return what to compile for the torch that is installed; nothing without one."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return []
    folder = Path(torch.origin).parent
    release = runpy.run_path(str(folder / "version.py"))["__version__"]
    built = Extension(
        f"model.native.{NAMING['operator_module'](release)}",
        ["model/native/forward.cpp"],
        depends=[*EACH, *HALF, *HEADERS],
        include_dirs=[str(folder / "include")],
        library_dirs=[str(folder / "lib")],
        libraries=["torch_cpu", "c10"],  # found when it is loaded: torch has opened them by then
        # as torch's own headers need it; without the symbols that Python's settings ask for; with
        # OpenMP, which is torch's own then, since nothing links another; and without a warning
        # that g++ gives of a tuple of more than three in torch's headers
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-fopenmp"]
        + ["-Wno-array-bounds"],
        extra_link_args=["-Wl,--strip-all"],
        language="c++",
        optional=True,  # a failure is told, and fails nothing
    )
    return [built]


setup(ext_modules=operator(), cmdclass={"build_ext": Build, "bdist_wheel": Wheel})
