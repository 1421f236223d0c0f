"""Child process of `sandbox.py`: runs the program on its standard input within limits, in an empty folder.

It is started by path in Python's isolated mode, and imports nothing of evalsuite.
"""

import builtins
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
    """Read the program, apply the limits, run it, and exit with the given code after its last statement."""
    seconds, memory, file, finished = (int(text) for text in sys.argv[1:])
    program = sys.stdin.read()
    # A new network namespace has no interfaces. If the kernel refuses it, the audit hook remains.
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
    # Isolated from the site, Python lacks what programs end with.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    exec(compile(program, "<answer>", "exec"), {"__name__": "__main__"})
    sys.__stdout__.flush()  # type: ignore[union-attr]  # it is a file
    os._exit(finished)


def _guard(folder: str) -> Any:
    """Return an audit hook, which cannot be removed: no network, no processes, no files outside `folder`.

    Python's own modules may be read, and the devices that they use.
    """
    readable = (folder, *map(os.path.realpath, sys.path), "/dev/null", "/dev/urandom", "/usr/share/zoneinfo")

    def inside(path: object, folders: tuple[str, ...] = (folder,)) -> bool:
        if isinstance(path, int):
            return True
        try:
            resolved = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]  # other types raise
        except TypeError:
            return False
        return any(resolved == each or resolved.startswith(each + os.sep) for each in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(REFUSED):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and not inside(arguments[0]):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            writing = isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
            if writing or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                raise PermissionError("writing outside the working folder is not allowed here")
            if not inside(arguments[0], readable):
                raise PermissionError("reading outside the working folder is not allowed here")
        if event.startswith(CHANGING) and arguments and not inside(arguments[0]):
            raise PermissionError(f"{event} outside the working folder is not allowed here")

    return hook


if __name__ == "__main__":
    main()
