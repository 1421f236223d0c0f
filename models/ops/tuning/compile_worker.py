"""The processes that compile kernels, forked from one that has imported torch: each answers a pipe."""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

LEFT_OUT = "fla", "fla.ops"
"""Packages that import all of their modules, which takes longer than to import torch and compile a kernel."""


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


def main(compile_one: Callable[..., str] = compile_kernel, *, imports: bool = True) -> None:
    """Fork a worker per pair of file descriptors in the arguments, and wait until all have ended.

    A worker reads requests, one per line, from the first of its pair, and answers each on the second by a
    line with the error, or "", until there are no more. All are JSON.
    """
    # The run needs the cores to read data and build models meanwhile.
    os.nice(5)
    # Compilers print, and stdout is for the run's own tables.
    os.dup2(2, 1)
    if imports:
        # All that fla imports, but not fla, which starts CUDA: no process may be forked after that.
        import torch._inductor.compile_fx  # noqa: F401
        import triton  # noqa: F401

        from evalsuite.models.ops.packages import hash_triton

        hash_triton()
    ends = [int(each) for each in sys.argv[1:]]
    for pair in zip(ends[::2], ends[1::2], strict=True):
        if os.fork() == 0:
            # Who waits for an answer is told that a worker has ended if nobody else can write it.
            for end in {*ends} - {*pair}:
                os.close(end)
            if imports:
                _leave_out_packages()
                import fla.ops.utils  # noqa: F401
            _serve(*pair, compile_one)
            # Nothing of the process that it was forked from is its own to clean up.
            os._exit(0)
    for end in ends:
        os.close(end)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _serve(requests: int, answers: int, compile_one: Callable[..., str]) -> None:
    with open(requests) as lines, open(answers, "w") as out:
        for line in lines:
            try:
                print(json.dumps(compile_one(**json.loads(line))), file=out, flush=True)
            except BrokenPipeError:
                return


def _leave_out_packages() -> None:
    """Let modules of `LEFT_OUT` be imported without what their packages import."""
    from evalsuite.models.ops.packages import package_versions

    version = package_versions()["flash-linear-attention"]
    for name in LEFT_OUT:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
    # Its modules import this one name of it.
    sys.modules["fla"].__version__ = version  # type: ignore[attr-defined]
