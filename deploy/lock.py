"""Write the locks next to this file: constraints.txt with the hash of every file of a package.

    requirements.lock   what the image installs, torch aside
    development.lock    what `make env` installs in addition
    image.lock          what of that the image installs too: the extras `convert` and `otlp`
    torch.lock          torch and the libraries of its CUDA build

Run it after a change of pyproject.toml or constraints.txt: `python deploy/lock.py`. It needs uv
on the PATH, and asks the same index as uv.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# but for the bundled model's wheel, which is made here: weights.txt pins what it is made of
ALL_EXTRAS = [word for extra in EXTRAS.keys() - {"minilm"} for word in ("--extra", extra)]
BUILD = ("setuptools>=77", "pip", "./client")  # in addition to what pyproject.toml declares
# The SBOM's tool wants them so that jsonschema knows one more format. jsonschema would read them in
# each of Ray's processes, which takes 2.5 s: a service would start in 44 s instead of 23.
# Of axe-playwright-python only axe.min.js is used: a browser is driven over chromedriver.
LEFT_OUT = ("rfc3987-syntax", "lark", "playwright", "pyee")
OF_TORCH = re.compile(r"torch|triton|nvidia-.*|cuda-.*")
ELSEWHERE = re.compile(r"sys_platform == '(?!linux)")  # no service runs there

# Wheels of torch's CPU builds, which uv's index lacks: from public locks of three other projects,
# which agree. That of Python 3.11 on x86_64 is also the hash of the wheel the tests run with.
CPU_VERSION = "2.13.0"
CPU_WHEELS = {
    "cp311-x86_64": "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
    "cp311-aarch64": "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
    "cp312-x86_64": "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
    "cp312-aarch64": "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
    "cp313-x86_64": "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
    "cp313-aarch64": "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
    "cp314-x86_64": "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",
    "cp314-aarch64": "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",
}

HEADS = {
    "requirements.lock": """\
# What the image installs, by hash; torch is in torch.lock, the client is built from client/.
""",
    "development.lock": """\
# What `make env` installs in addition to requirements.lock, by hash: the extras, tests, checks.
""",
    "image.lock": """\
# What the image installs in addition, by hash: the extras `convert` and `otlp`; all of it is in
# development.lock too.
""",
    "torch.lock": """\
# torch by hash, its CUDA and its CPU build, and what the CUDA build asks for. These are
# constraints: torch.sh takes what the build that it finds needs. Any other build pip refuses.
""",
}
TAIL = "# Made by deploy/lock.py; held by tests/test_packaging.py.\n"


def compiled(*options: str) -> dict[str, str]:
    """Resolve what pyproject.toml declares, for Linux: each package's entry, by its name."""
    command = "uv pip compile --quiet --universal --python-version 3.11 --generate-hashes"
    command += " --no-header --no-annotate"
    command += "".join(
        f" --no-emit-package {name}" for name in ("headlight-serve-client", *LEFT_OUT)
    )
    command += " --constraint constraints.txt pyproject.toml -"
    text = subprocess.run(
        [*command.split(), *options],
        cwd=ROOT,
        input="\n".join(BUILD),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    entries = re.findall(r"^\S.*(?:\n .*)*\n", text, re.MULTILINE)
    return {entry.partition("==")[0]: entry for entry in entries if not ELSEWHERE.search(entry)}


def with_cpu(torch: str) -> str:
    """Add the CPU build's wheels to torch's entry, one hash a line.

    Raises:
        ValueError: they are of another version.
    """
    if not torch.startswith(f"torch=={CPU_VERSION} "):
        raise ValueError(f"CPU_WHEELS is of torch {CPU_VERSION}, not of {torch.split()[0]}")
    return (
        torch.rstrip()
        + "".join(f" \\\n    --hash=sha256:{sha256}" for sha256 in CPU_WHEELS.values())
        + "\n"
    )


def write(name: str, entries: Iterable[str]) -> None:
    """Write one lock with its head."""
    (ROOT / "deploy" / name).write_text("".join([HEADS[name], TAIL, *entries]))


def main() -> None:
    """Write all four."""
    service, everything = compiled(), compiled(*ALL_EXTRAS)
    everything["torch"] = with_cpu(everything["torch"])
    names = {name for name in everything if not OF_TORCH.fullmatch(name)}
    of_torch = sorted(everything.keys() - names)
    write("requirements.lock", [everything[name] for name in sorted(names & service.keys())])
    write("development.lock", [everything[name] for name in sorted(names - service.keys())])
    image = compiled("--extra", "convert", "--extra", "otlp").keys() - service.keys()
    write("image.lock", [everything[name] for name in sorted(names & image)])
    write("torch.lock", [everything[name] for name in of_torch])


if __name__ == "__main__":
    main()
