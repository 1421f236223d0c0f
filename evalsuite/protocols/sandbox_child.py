"""Runs the program on its standard input within limits; started by `sandbox.py`, by path, in an empty folder.

Imports nothing of ours: it runs in Python's isolated mode.
"""

import ctypes
import os
import resource
import sys
from typing import Any

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
REFUSED = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.kill",
    "os.putenv",
    "ctypes.",
    "signal.pthread_kill",
)
CHANGING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.link", "os.symlink", "shutil.")


def main() -> None:
    """Read the program, close the doors, run it."""
    seconds, memory, file = (int(text) for text in sys.argv[1:])
    program = sys.stdin.read()
    # A network namespace of its own has no interfaces. Where the kernel refuses it, the hook below remains.
    ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 32),
    ):
        resource.setrlimit(kind, (limit, limit))
    sys.addaudithook(_guard(os.path.realpath(os.getcwd())))
    exec(compile(program, "<answer>", "exec"), {"__name__": "__main__"})


def _guard(folder: str) -> Any:
    """An audit hook: no network, no processes, no changes outside of `folder`. It cannot be removed."""

    def inside(path: object) -> bool:
        if isinstance(path, int):
            return True
        try:
            whole = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]  # other types raise
        except TypeError:
            return False
        return whole == folder or whole.startswith(folder + os.sep)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and not inside(arguments[0]):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            writing = isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
            if writing or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise PermissionError("writing outside of the working folder is not allowed here")
        if event.startswith(CHANGING) and arguments and not inside(arguments[0]):
            raise PermissionError(f"{event} outside of the working folder is not allowed here")

    return hook


if __name__ == "__main__":
    main()
