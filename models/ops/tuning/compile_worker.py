"""A process that compiles Triton kernels (see `compile_ahead`): one request per line of stdin, one answer per
line of stdout."""

import importlib
import json
import os
import signal
import sys
from typing import Any


def compile_kernel(module: str, name: str, specialization: str, **_: str) -> str:
    """Compile a kernel into Triton's cache on disk; return the error, "" if there is none."""
    from triton.runtime.jit import JITFunction

    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        while not isinstance(function, JITFunction):
            function = function.fn
        function.preload(specialization)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Answer requests until stdin ends."""
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Compilers print to stdout; answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import fla.ops  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(compile_kernel(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
