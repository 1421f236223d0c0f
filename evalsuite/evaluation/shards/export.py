"""Export of a run's responses to one file."""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.evaluation.environment import environment_path, fingerprints
from evalsuite.evaluation.registration import (
    diverged_path,
    read_diverged,
    read_registered,
    registered_path,
)
from evalsuite.evaluation.run_paths import read_index, read_requests, responses_folder
from evalsuite.evaluation.run_responses import open_responses
from evalsuite.foundation import RunFolderError, canonical_json, read_jsonl, write_bytes
from evalsuite.reports.records.loss_curves import loss_curve_path

CHECKPOINTS = "checkpoints.json"
"""In a shard: its checkpoints, as `requests/index.json` lists them."""
MANIFEST = "manifest.json"
"""In a shard: the number of lines and the checksum of every other file."""


def export_shard(run: Path, out: Path) -> Path:
    """Write the responses of `run` to one ``.tar.xz``.

    Log-probabilities are written as float32, the precision in which they were summed. The last member states
    size and checksum of all others.

    Raises:
        RunFolderError: the run has no responses, or `out` cannot be written.
    """
    run = Path(run)
    logs = sorted(responses_folder(run).glob("*.jsonl"))
    if not logs:
        raise RunFolderError(f"{run}: no responses to export")
    index = read_index(run)
    known = fingerprints(run)
    checkpoints = [each for each in index.checkpoints if each.weights_id in known]
    members: dict[str, bytes] = {
        CHECKPOINTS: canonical_json([asdict(each) for each in checkpoints]).encode(),
        environment_path(Path()).name: environment_path(run).read_bytes(),
    }
    # A run that was interrupted has registered checkpoints without responses, too.
    if registered := {key: value for key, value in read_registered(run).items() if key in known}:
        members[str(registered_path(Path()))] = canonical_json(registered).encode()
    if diverged := read_diverged(run):
        members[str(diverged_path(Path()))] = canonical_json(diverged).encode()
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
    fingerprint = fingerprints(run).get(weights_id)
    if fingerprint is None:
        return False
    index, cache = read_index(run), open_responses(run)
    checkpoint = next(each for each in index.checkpoints if each.weights_id == weights_id)
    limit = index.limit(checkpoint)
    return all(
        cache.get_by_key(fingerprint, request.key()) is not None
        for cell in index.cells
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
