"""Builds the compiled forward pass, where a C++ compiler and torch are at hand.

Where they are not, Headlight is installed without it, and its loop over layers serves
(docs/deploy.md). Everything else stands in pyproject.toml.
"""

import runpy
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent
NAMING = runpy.run_path(str(HERE / "model" / "native" / "__init__.py"))


def operator() -> list[Extension]:
    """What is to be compiled for the torch that is installed; nothing where there is none."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return []
    folder = Path(torch.origin).parent
    release = runpy.run_path(str(folder / "version.py"))["__version__"]
    built = Extension(
        f"model.native.{NAMING['module'](release)}",
        ["model/native/forward.cpp"],
        depends=["model/native/linear.h"],
        include_dirs=[str(folder / "include")],
        library_dirs=[str(folder / "lib")],
        libraries=["torch_cpu", "c10"],  # found when it is loaded: torch has opened them by then
        # as torch's own headers need it; without the symbols that Python's settings ask for; with
        # OpenMP, which is torch's own then, since nothing links another
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-fopenmp"],
        extra_link_args=["-Wl,--strip-all"],
        language="c++",
        optional=True,  # a failure is told, and fails nothing
    )
    return [built]


setup(ext_modules=operator())
