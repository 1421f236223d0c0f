"""Export of a run's responses to one file."""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.evaluation.run_paths import (
    cells_of,
    open_responses,
    read_built,
    read_requests,
    responses_folder,
)
from evalsuite.foundation import RunFolderError, canonical_json, read_jsonl, write_bytes
from evalsuite.foundation.machine_paths import last_components
from evalsuite.reports.records.loss_curves import loss_curve_path
from evalsuite.reports.run import FILE, environment_path, manifest_json, read_environment

MANIFEST = "manifest.json"
"""In a shard: the number of lines and the checksum of every other file."""


def export_shard(run: Path, out: Path) -> Path:
    """Write the responses of `run` to one ``.tar.xz``.

    Log-probabilities are written as float32, the precision in which they were summed; paths as their last
    component, because another machine reads them. The last member states size and checksum of all others.

    Raises:
        RunFolderError: the run has no responses, or `out` cannot be written.
    """
    run = Path(run)
    logs = sorted(responses_folder(run).glob("*.jsonl"))
    if not logs:
        raise RunFolderError(f"{run}: no responses to export")
    manifest = read_built(run)
    # A run that was interrupted has checkpoints without responses, too.
    checkpoints = tuple(each for each in manifest.checkpoints if each.weights_id in manifest.engines)
    part = replace(
        manifest,
        checkpoints=tuple(each.portable() for each in checkpoints),
        diverged=tuple(each.portable() for each in manifest.diverged),
        data=last_components(manifest.data),
    )
    members: dict[str, bytes] = {
        FILE: canonical_json(manifest_json(part)).encode(),
        environment_path(Path()).name: canonical_json(last_components(read_environment(run))).encode(),
    }
    for log in logs:
        rows = sorted((_as_float32(row) for row in read_jsonl(log)), key=lambda row: str(row["key"]))
        members[f"responses/{log.name}"] = _lines(rows)
    for curve in (loss_curve_path(run, each.label) for each in checkpoints):
        if curve.is_file():
            members[str(curve.relative_to(run))] = curve.read_bytes()
    members[MANIFEST] = canonical_json({name: stated(data) for name, data in members.items()}).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name, data in members.items():
            _add_member(archive, name, data)
    write_bytes(out, buffer.getvalue())
    return out


def stated(data: bytes) -> dict[str, Any]:
    """Return what `MANIFEST` states of a member."""
    return {"lines": data.count(b"\n"), "sha256": hashlib.sha256(data).hexdigest()}


def is_complete(run: Path, weights_id: str) -> bool:
    """Return whether `run` has a response to every request of the checkpoint with these weights."""
    manifest = read_built(run)
    fingerprint = manifest.fingerprints.get(weights_id)
    if fingerprint is None:
        return False
    cache = open_responses(run, manifest)
    checkpoint = next(each for each in manifest.checkpoints if each.weights_id == weights_id)
    limit = manifest.limit(checkpoint)
    return all(
        cache.get_by_key(fingerprint, request.key()) is not None
        for cell in cells_of(manifest)
        for request_set in read_requests(run, checkpoint.tokenizer, cell)
        if limit.reads(request_set.context)
        for request in cell.requests(request_set)
    )


def _as_float32(row: dict[str, Any]) -> dict[str, Any]:
    response = row["response"]
    if "logprobs" not in response:
        return row
    # The shortest decimal with the same float32 value.
    short = [float(str(np.float32(value))) for value in response["logprobs"]]
    return {**row, "response": {**response, "logprobs": short}}


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(canonical_json(row) + "\n" for row in rows).encode()


def _add_member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
