"""Machines made of namespaces: each has its own address, processes, /tmp and /dev/shm.

    network()      a switch, and this process's own line to it
    machine(n)     one more machine on it, at the network's address n

Every namespace lives as long as its first process, which ends when this one does, however that
ends: with it go the machine's processes, its files in memory and its lines. Needs root.
"""

import os
import random
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.ray.conftest import command, title

UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# bash as first process: reaps what is left behind, and ends with the pipe to its maker
ROOT = shlex.quote(str(Path(__file__).parent.parent.parent))  # which may itself lie in /tmp
FIRST = (
    f"mount --bind {ROOT} /mnt && mount -t tmpfs none /tmp && mount -t tmpfs none /dev/shm"
    f" && mkdir -p {ROOT} && mount --bind /mnt {ROOT} && umount /mnt"
    " && ip link set lo up && read -r"
)
SYS_ADMIN = 21  # <linux/capability.h>
START_SECONDS = 10

Machines = Callable[[int], "Machine"]


@dataclass
class Machine:
    """One of them.

    Args:
        first: its first process, by the id it has here.
    """

    address: str
    first: int

    def enter(self, script: str) -> list[str]:
        """The command that runs a script of bash on it."""
        where = ("nsenter", "--target", str(self.first), "--net", "--mount", "--pid", "--wd=/")
        return [*where, "bash", "-c", script]

    def run(self, script: str, seconds: float = 60) -> str:
        """Run a script to its end; its output.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run(
            self.enter(script), capture_output=True, text=True, timeout=seconds, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def processes(self) -> dict[int, str]:
        """What runs on it, by the ids that processes have here."""
        ours = os.readlink(f"/proc/{self.first}/ns/pid")
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(entry / "ns" / "pid") == ours:
                    found[int(entry.name)] = title(int(entry.name))
        return found

    def named(self, name: str) -> list[int]:
        """Those of a name, oldest first."""
        return sorted(pid for pid, each in self.processes().items() if each == name)

    def starters(self) -> list[int]:
        """The processes of its `ray start`."""
        return [pid for pid in self.processes() if b"/ray\0start\0" in command(pid)]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to the only process of a name; its id."""
        (pid,) = self.named(name)
        os.kill(pid, number)
        return pid

    def files(self, pattern: str) -> list[Path]:
        """Its files below /tmp."""
        return sorted(Path(f"/proc/{self.first}/root/tmp").glob(pattern))


def missing() -> str:
    """What this machine lacks for others within it; empty where nothing is."""
    capable = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    if not capable >> SYS_ADMIN & 1:
        return "namespaces need root with CAP_SYS_ADMIN"
    programs = ("ip", "unshare", "nsenter", "mount")
    absent = [program for program in programs if shutil.which(program) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextmanager
def network() -> Iterator[Machines]:
    """A network that only this machine, at its address 1, and those within reach."""
    prefix = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
    with ExitStack() as stack:
        switch = stack.enter_context(_first())
        names = iter(range(1, 255))

        def line(number: int, into: int | None) -> None:
            """A line from the switch to a machine, or to this one."""
            # this one's has another name in each network: the kernel takes its time to remove it
            here, there = f"p{next(names)}", "eth0" if into else f"hl{switch}"
            to = f"netns {into}" if into else ""
            _ip(f"link add {there} {to} type veth peer name {here} netns {switch}")
            inside = f"nsenter --target {into} --net " if into else ""
            run(f"{inside}ip addr add {prefix}.{number}/24 dev {there}")
            run(f"{inside}ip link set {there} up")
            run(f"nsenter --target {switch} --net ip link set {here} master switch up")

        run(f"nsenter --target {switch} --net ip link add switch type bridge")
        run(f"nsenter --target {switch} --net ip link set switch up")
        line(1, None)

        def machine(number: int) -> Machine:
            first = stack.enter_context(_first())
            line(number, first)
            return Machine(f"{prefix}.{number}", first)

        yield machine


def _ip(arguments: str) -> None:
    run(f"ip {arguments}")


def run(command: str) -> None:
    """Run a command here.

    Raises:
        AssertionError: it failed.
    """
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@contextmanager
def _first() -> Iterator[int]:
    """New namespaces, by the id of their first process."""
    ready = "echo ready; read -r"
    with subprocess.Popen(
        [*UNSHARE, "bash", "-c", FIRST.replace("read -r", ready)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        try:
            assert process.stdout.readline() == "ready\n"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield int(children)
        finally:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(START_SECONDS)
            process.kill()
