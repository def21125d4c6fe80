"""Run the service's command line where /tmp is a small disk of its own; needs root.

python -m tests.tiny_disk serve ...
"""

import ctypes
import os

SIZE = "96m"
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x00020000, 1 << 14, 1 << 18  # <sched.h>, <sys/mount.h>


def main() -> None:
    """Put a tmpfs over /tmp that no other process sees, then serve."""
    libc = ctypes.CDLL(None, use_errno=True)
    for failed in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, f"size={SIZE}".encode()),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "no disk of our own")
    os.environ["TMPDIR"] = "/tmp"
    from service import cli

    cli.main()


if __name__ == "__main__":
    main()
