"""`environment.json`, software, hardware and timing behind a run's numbers, and engines for its manifest.

This module needs only the standard library: a GPU host writes the file with nothing but `evalsuite.models`.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import evalsuite
from evalsuite.foundation import RunFolderError
from evalsuite.foundation.dependencies import installed_versions
from evalsuite.reports.run import (
    Engine,
    read_environment,
    read_manifest,
    write_environment,
    write_manifest,
)

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


def update_environment(run: Path, **facts: Any) -> None:
    """Merge facts into the file, along with current versions and hardware."""
    write_environment(run, read_environment(run) | describe_machine() | facts)


def describe_machine() -> dict[str, Any]:
    """Return package versions and hardware of this machine, and the commit that runs."""
    return describe_packages() | {
        "evalsuite": evalsuite.__version__,
        "processors": os.cpu_count(),
        "git": _git(Path(evalsuite.__file__).resolve().parents[1]),
    }


def describe_packages() -> dict[str, Any]:
    """Return what of this machine affects the numerics of a model."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": installed_versions(PACKAGES),
        "accelerators": _accelerators(),
    }


@cache
def _git(folder: Path) -> dict[str, Any] | None:
    """Return commit and dirty flag of a checkout when this process first saw it; None if it is none."""
    if not (folder / ".git").exists():
        return None
    outputs = []
    # No optional locks: `status` rewrites the index, and a killed process would leave its lock behind.
    git = ("git", "--no-optional-locks", "-C", str(folder))
    for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run([*git, *command], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        outputs.append(done.stdout.strip())
    return {"commit": outputs[0], "changed": bool(outputs[1])}


def _accelerators() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def kernel_facts() -> dict[str, Any]:
    """Return which kernels computed the recurrences of this process, and why that backend was chosen."""
    from evalsuite.models.ops.dispatch import backend_messages
    from evalsuite.models.ops.recurrence import last_kernels

    kernels = last_kernels()
    return {"kernels": kernels, "backend": backend_messages()} if kernels else {}


def record_engine(run: Path, facts: Mapping[str, Any]) -> None:
    """Record the engine of a checkpoint; the score phase finds its responses by the fingerprint.

    The batch limits of the first call are kept. So is the description of a worker's machine, if it is not
    this one.

    Args:
        run: the run folder, which this process has locked.
        facts: of the engine and its machine, as `evalsuite.evaluation.inference.worker` sends them.

    Raises:
        RunFolderError: responses with another fingerprint are recorded for these weights.
    """
    manifest = read_manifest(run)
    engine = Engine(**{name: facts[name] for name in facts if name not in ("weights_id", "host", "machine")})
    before = manifest.engines.get(facts["weights_id"])
    if before is not None and before.fingerprint != engine.fingerprint:
        differing = [
            f"{name} {old} there, {engine.versions.get(name)} here"
            for name, old in before.versions.items()
            if engine.versions.get(name) != old
        ]
        raise RunFolderError(
            f"{run}: holds responses of these weights from engine {before.engine} with fingerprint "
            f"{before.fingerprint}, not {engine.fingerprint} of host {facts['host']} "
            f"({'; '.join(differing) or 'other source code of evalsuite'}); score those with --score-only, "
            "or choose another --out"
        )
    if before is not None and before.batch_limits is not None:
        engine = replace(engine, batch_limits=before.batch_limits)
    if before == engine:
        return
    write_manifest(run, replace(manifest, engines=manifest.engines | {facts["weights_id"]: engine}))
    hosts = read_environment(run).get("inference_hosts", [])
    if facts["machine"] not in hosts:
        hosts = [*hosts, facts["machine"]]
    update_environment(run, inference_hosts=hosts)


def coverage_notices(
    partial: Mapping[str, Sequence[int]],
    left_out: Mapping[str, str],
    unread: Mapping[str, Mapping[str, str]],
) -> list[str]:
    """Return one line per benchmark that is incomplete or left out, and per context that one does not read.

    Args:
        partial: benchmark → documents available, documents published.
        left_out: benchmark, or a single context of it → reason.
        unread: label → contexts that this checkpoint is not evaluated on → reason.
    """
    lines = [
        f"{name}: {available:,} of {published:,} documents are available"
        for name, (available, published) in partial.items()
    ]
    lines += [f"{name} is left out: {reason}" for name, reason in left_out.items()]
    return lines + [
        f"{name} is not read by {label}: it {reason}"
        for label, contexts in unread.items()
        for name, reason in contexts.items()
    ]
