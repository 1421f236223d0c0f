"""`environment.json`: on what a run was answered, so that its numbers can be explained later.

Needs the standard library alone: it is also written where only `evalsuite.models` is at hand.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import evalsuite
from evalsuite.foundation import RunFolderError, read_json, write_json
from evalsuite.models.engine.base import Engine

PACKAGES = (
    "torch",
    "triton",
    "flash-linear-attention",
    "transformers",
    "tokenizers",
    "lm-eval",
    "evalscope",
    "datasets",
    "numpy",
)


def environment_path(run: Path) -> Path:
    """Where it lies."""
    return Path(run) / "environment.json"


def read(run: Path) -> dict[str, Any]:
    """What is known so far; empty before anything is."""
    path = environment_path(run)
    return dict(read_json(path)) if path.is_file() else {}


def note(run: Path, **facts: Any) -> None:
    """Add facts, beside the versions and the machine."""
    write_json(environment_path(run), read(run) | machine() | facts)


def machine() -> dict[str, Any]:
    """Versions and hardware."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "evalsuite": evalsuite.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "packages": versions,
        "accelerators": _accelerators(),
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Commit of the checkout that evalsuite runs from, and whether it was changed; None if it is none."""
    folder = Path(evalsuite.__file__).resolve().parents[1]
    if not (folder / ".git").exists():
        return None
    said = []
    # Without its lock: `status` writes the index anew, and when it is stopped the lock would stay.
    git = ("git", "--no-optional-locks", "-C", str(folder))
    for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run([*git, *command], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        said.append(done.stdout.strip())
    return {"commit": said[0], "changed": bool(said[1])}


def _accelerators() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def note_kernels(run: Path) -> None:
    """Note which kernels computed the recurrences of this process, and why that backend was taken."""
    from evalsuite.models.recurrence import backend_note, kernels_used

    if kernels := kernels_used():
        note(run, kernels=read(run).get("kernels", {}) | kernels, backend=backend_note())


def note_answering(
    run: Path, label: str, answers: int, seconds: float, protocols: Sequence[str] = ()
) -> None:
    """Note how long it took to answer for a checkpoint, its loading included."""
    spent = {"label": label, "answers": answers, "seconds": round(seconds, 1), "protocols": list(protocols)}
    note(run, answering=[*read(run).get("answering", []), spent])


def note_engine(run: Path, weights_id: str, engine: Engine) -> None:
    """Note which engine answers for a checkpoint: judging looks its answers up by the fingerprint.

    Raises:
        RunFolderError: other answers for these weights are noted here already.
    """
    engines = dict(read(run).get("engines", {}))
    before = engines.get(weights_id)
    if before is not None and before["fingerprint"] != engine.fingerprint:
        raise RunFolderError(
            f"{run}: holds answers of these weights from engine {before['engine']} with fingerprint "
            f"{before['fingerprint']}, not {engine.fingerprint} (another device, dtype or version); "
            "judge those with --judge-only, or give another --out"
        )
    engines[weights_id] = {
        "engine": engine.name,
        "fingerprint": engine.fingerprint,
        "max_length": engine.max_length,
        "versions": dict(getattr(engine, "versions", {})),
    }
    note(run, engines=engines)


def fingerprints(run: Path) -> dict[str, str]:
    """The fingerprint under which the answers of each weights_id are stored."""
    return {weights_id: entry["fingerprint"] for weights_id, entry in read(run).get("engines", {}).items()}
