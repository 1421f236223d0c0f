"""The packages of Triton kernels: whether they can run on this machine, and their versions."""

import functools
import importlib.metadata
import importlib.util
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path

import torch


@functools.cache
def unavailable_reason() -> str:
    """Reason why Triton kernels cannot run on this machine; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    for package in ("triton", "fla"):
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed; pip install 'evalsuite[gpu]'"
    return ""


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of fla and triton, by distribution."""
    # Slimmed or vendored packages may lack metadata, so the modules' own __version__ comes first.
    found = {}
    for package, distribution in (("fla", "flash-linear-attention"), ("triton", "triton")):
        found[distribution] = _stated_version(package) or importlib.metadata.version(distribution)
    return found


def _stated_version(package: str) -> str | None:
    """A package's `__version__`, read from its file unless it is imported; None if it states none.

    Importing fla imports all of its models, which takes seconds, and a Transformer runs without them.
    """
    if package in sys.modules:
        return getattr(sys.modules[package], "__version__", None)
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    stated = re.search(r"^__version__ = [\"']([^\"']+)[\"']", Path(found.origin).read_text(), re.MULTILINE)
    return stated[1] if stated else None


def version() -> str:
    """Versions of fla and triton, for logs and fingerprints."""
    return ", ".join(f"{distribution} {number}" for distribution, number in package_versions().items())


def hash_triton() -> None:
    """Let Triton hash its files, of hundreds of megabytes, for which the first launch of a process waits.

    What fails here fails again at that launch, which reports it.
    """
    with suppress(Exception):
        from triton.runtime.cache import triton_key

        triton_key()


def hash_triton_ahead() -> None:
    """Do so in the background, once all that imports Triton is imported."""
    threading.Thread(target=hash_triton, name="triton", daemon=True).start()
