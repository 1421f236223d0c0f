"""Shards: the responses of one machine, exported to a file and merged into the run at home.

A shard is a run folder (or a ``.tar.xz`` of it) without requests: responses, `environment.json`, registered
checkpoints and the loss curves of the students. Responses are keyed by their requests, so shards may be
merged in any order, repeatedly, and after the run has grown.
"""

import io
import lzma
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from evalsuite.evaluation.checkpoints import CheckpointRegistry
from evalsuite.evaluation.environment import (
    environment_path,
    fingerprints,
    read_environment,
    update_environment,
)
from evalsuite.evaluation.loss_curves import read_curve, write_curves
from evalsuite.evaluation.registration import read_registered, registered_path
from evalsuite.evaluation.run_paths import (
    CheckpointRef,
    Index,
    index_path,
    read_index,
    read_requests,
    responses_folder,
    write_index,
)
from evalsuite.foundation import (
    DataError,
    RunFolderError,
    append_jsonl,
    canonical_json,
    read_json,
    read_jsonl,
    write_bytes,
    write_json,
)
from evalsuite.models.inference.response_cache import ResponseCache
from evalsuite.reports.records.loss_curves import loss_curve_path

CHECKPOINTS = "checkpoints.json"
"""In a shard: its checkpoints, as `requests/index.json` lists them."""


def export_shard(run: Path, out: Path) -> Path:
    """Write the responses of `run` to one ``.tar.xz``.

    Log-probabilities are written as float32, the precision in which they were summed.

    Raises:
        RunFolderError: the run has no responses, or `out` cannot be written.
    """
    run = Path(run)
    journals = sorted(responses_folder(run).glob("*.jsonl"))
    if not journals:
        raise RunFolderError(f"{run}: no responses to export")
    index = read_index(run)
    known = fingerprints(run)
    checkpoints = [each for each in index.checkpoints if each.weights_id in known]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        _add_member(archive, CHECKPOINTS, canonical_json([asdict(each) for each in checkpoints]).encode())
        _add_member(archive, environment_path(Path()).name, environment_path(run).read_bytes())
        if registered_path(run).is_file():
            _add_member(archive, str(registered_path(Path())), registered_path(run).read_bytes())
        for journal in journals:
            rows = sorted((_as_float32(row) for row in read_jsonl(journal)), key=lambda row: str(row["key"]))
            _add_member(archive, f"responses/{journal.name}", _lines(rows))
        for curve in (loss_curve_path(run, each.label) for each in checkpoints):
            if curve.is_file():
                _add_member(archive, str(curve.relative_to(run)), curve.read_bytes())
    write_bytes(out, buffer.getvalue())
    return out


def is_complete(run: Path, weights_id: str) -> bool:
    """Return whether `run` has a response to every request of the checkpoint with these weights."""
    fingerprint = fingerprints(run).get(weights_id)
    if fingerprint is None:
        return False
    index, cache = read_index(run), ResponseCache(responses_folder(run))
    tokenizer = next(each.tokenizer for each in index.checkpoints if each.weights_id == weights_id)
    return all(
        cache.get_by_key(fingerprint, request.key()) is not None
        for cell in index.cells
        for request_set in read_requests(run, tokenizer, cell)
        for request in cell.requests(request_set)
    )


def merge_shards(run: Path, shards: Sequence[Path]) -> dict[str, int]:
    """Merge the responses of other machines into a run.

    Returns:
        Label → number of responses that were new.

    Raises:
        DataError: an invalid shard, or an incomplete loss curve in it.
        RunFolderError: responses of another engine than those that the run has for the same weights.
    """
    counts: dict[str, int] = {}
    for shard in shards:
        with _open_shard(Path(shard)) as folder:
            for label, count in _merge_one(Path(run), folder, str(shard)).items():
                counts[label] = counts.get(label, 0) + count
    return counts


def _merge_one(run: Path, shard: Path, name: str) -> dict[str, int]:
    facts = read_environment(shard)
    engines = facts.get("engines", {})
    if not engines:
        raise DataError(f"{name}: not a shard (no environment.json that names an engine)")
    checkpoints = _checkpoints(shard)
    index = _with_checkpoints(read_index(run), checkpoints)
    labels = index.labels
    here = read_environment(run)
    merged = dict(here.get("engines", {}))
    for weights_id, engine in engines.items():
        if weights_id not in labels:
            raise DataError(f"{name}: has responses of {weights_id}, which is no checkpoint of {run}")
        before = merged.setdefault(weights_id, engine)
        if before["fingerprint"] != engine["fingerprint"]:
            raise RunFolderError(
                f"{name}: responses of {labels[weights_id]} have fingerprint {engine['fingerprint']}; those "
                "in "
                f"{run} have {before['fingerprint']} (another device, dtype or version)"
            )
    curves = {}
    for each in checkpoints:
        path = loss_curve_path(shard, each.label)
        if each.weights_id in engines and path.is_file():
            curves[labels[each.weights_id]] = read_curve(
                path,
                f"{name}: {path.relative_to(shard)}",
                "unpack the shard (a folder can be merged as well)",
            )
    counts = {}
    for weights_id, engine in engines.items():
        journals = sorted(responses_folder(shard).glob(f"{engine['fingerprint']}.*.jsonl"))
        counts[labels[weights_id]] = sum(
            _append(responses_folder(run) / path.name, path) for path in journals
        )
    registered = read_registered(shard)
    if registered:
        write_json(registered_path(run), read_registered(run) | registered)
    write_index(run, index)
    write_curves(run, curves)
    machine = {key: facts[key] for key in ("accelerators", "packages", "python", "platform") if key in facts}
    hosts = [each for each in here.get("inference_hosts", []) if each != machine]
    spent = here.get("inference", [])
    spent += [each for each in facts.get("inference", []) if each not in spent]
    update_environment(
        run,
        engines=merged,
        inference_hosts=[*hosts, machine],
        inference=spent,
        **_merge_kernels(here, facts),
    )
    return counts


def _merge_kernels(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Return the union of the kernels that computed recurrences."""
    kernels = here.get("kernels", {}) | there.get("kernels", {})
    return {"kernels": kernels, "backend": there.get("backend", here.get("backend"))} if kernels else {}


def _checkpoints(shard: Path) -> list[CheckpointRef]:
    """Return the checkpoints of a shard; empty for a folder with responses and environment only."""
    if (shard / CHECKPOINTS).is_file():
        return [CheckpointRef(**each) for each in read_json(shard / CHECKPOINTS)]
    return list(read_index(shard).checkpoints) if index_path(shard).is_file() else []


def _with_checkpoints(index: Index, new: Iterable[CheckpointRef]) -> Index:
    checkpoints = list(index.checkpoints)
    registry = CheckpointRegistry(checkpoints)
    for ref in new:
        if any(each.weights_id == ref.weights_id for each in checkpoints):
            continue
        checkpoints.append(replace(ref, label=registry.add(ref)))
    return replace(index, checkpoints=tuple(checkpoints))


def _append(path: Path, new: Path) -> int:
    """Append the responses with new keys, and return their number."""
    known = {canonical_json(row["key"]) for row in read_jsonl(path)} if path.is_file() else set()
    rows = [row for row in read_jsonl(new) if canonical_json(row["key"]) not in known]
    if rows:
        append_jsonl(path, rows)
    return len(rows)


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


@contextmanager
def _open_shard(shard: Path) -> Iterator[Path]:
    """Yield the shard's folder, unpacked if it is a file."""
    if shard.is_dir():
        yield shard
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tarfile.open(shard, "r:xz") as archive:
                archive.extractall(folder, filter="data")
        except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
            raise DataError(f"{shard}: not a shard of a run ({error})") from error
        yield Path(folder)
