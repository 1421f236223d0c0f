"""Merging of shards into a run: all of them are validated, then all of them are written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalsuite.evaluation.checkpoints import CheckpointRegistry
from evalsuite.evaluation.environment import read_environment, update_environment
from evalsuite.evaluation.loss_curves import write_curves
from evalsuite.evaluation.registration import (
    diverged_path,
    read_diverged,
    read_registered,
    registered_path,
)
from evalsuite.evaluation.run_paths import CheckpointRef, Index, read_index, responses_folder, write_index
from evalsuite.evaluation.shards.validate import Shard, open_shard, read_shard
from evalsuite.foundation import RunFolderError, append_jsonl, canonical_json, read_jsonl, write_json


def merge_shards(run: Path, shards: Sequence[Path]) -> dict[str, int]:
    """Merge the responses of other machines into a run.

    Of two responses with the same key the first counts, unless it is an error and the other is not.

    Returns:
        Label → number of responses that were new.

    Raises:
        DataError: an invalid shard, or an incomplete loss curve in it; nothing is merged.
        RunFolderError: responses of another engine than those that the run has for the same weights.
    """
    run = Path(run)
    index, engines, found = read_index(run), dict(read_environment(run).get("engines", {})), []
    for path in shards:
        with open_shard(Path(path)) as folder:
            shard = read_shard(folder, str(path), run, index)
        index = _with_checkpoints(index, shard.checkpoints)
        _add_engines(engines, shard, index.labels, run)
        found.append(shard)
    counts: dict[str, int] = {}
    for shard in found:
        for weights_id, logs in shard.responses.items():
            label = index.labels[weights_id]
            new = sum(_append(responses_folder(run) / name, rows) for name, rows in logs.items())
            counts[label] = counts.get(label, 0) + new
        _write_facts(run, shard, index.labels)
    update_environment(run, engines=engines)
    write_index(run, index)
    return counts


def _with_checkpoints(index: Index, new: Iterable[CheckpointRef]) -> Index:
    checkpoints = list(index.checkpoints)
    registry = CheckpointRegistry(checkpoints)
    for ref in new:
        if any(each.weights_id == ref.weights_id for each in checkpoints):
            continue
        checkpoints.append(replace(ref, label=registry.add(ref)))
    return replace(index, checkpoints=tuple(checkpoints))


def _add_engines(
    engines: dict[str, dict[str, Any]], shard: Shard, labels: Mapping[str, str], run: Path
) -> None:
    """Add the engines of a shard to those of the run."""
    for weights_id, engine in shard.engines.items():
        before = engines.setdefault(weights_id, engine)
        if before["fingerprint"] != engine["fingerprint"]:
            raise RunFolderError(
                f"{shard.name}: responses of {labels[weights_id]} have fingerprint {engine['fingerprint']}; "
                f"those in {run} have {before['fingerprint']} (another device, dtype or version)"
            )


def _append(path: Path, new: Sequence[dict[str, Any]]) -> int:
    """Append the responses with new keys, or to keys that had errors only; return their number."""
    failed = {canonical_json(row["key"]): _is_error(row) for row in read_jsonl(path)}
    found: dict[str, dict[str, Any]] = {}
    for row in new:
        key = canonical_json(row["key"])
        if key not in found or not _is_error(row):
            found[key] = row
    rows = [row for key, row in found.items() if key not in failed or (failed[key] and not _is_error(row))]
    append_jsonl(path, rows)
    return len(rows)


def _is_error(row: Mapping[str, Any]) -> bool:
    return row["response"].get("error") is not None


def _write_facts(run: Path, shard: Shard, labels: Mapping[str, str]) -> None:
    """Write registered checkpoints, loss curves and the other machine's facts into the run."""
    # A shard of an interrupted run can register checkpoints of which it has nothing.
    if registered := {key: value for key, value in shard.registered.items() if key in labels}:
        write_json(registered_path(run), read_registered(run) | registered)
    if shard.diverged:
        write_json(diverged_path(run), read_diverged(run) | shard.diverged)
    write_curves(run, {labels[weights_id]: data for weights_id, data in shard.curves.items()})
    here, there = read_environment(run), shard.environment
    machine = {key: there[key] for key in ("accelerators", "packages", "python", "platform") if key in there}
    hosts = [each for each in here.get("inference_hosts", []) if each != machine]
    spent = list(here.get("inference", []))
    spent += [each for each in there.get("inference", []) if each not in spent]
    facts: dict[str, Any] = {}
    if kernels := here.get("kernels", {}) | there.get("kernels", {}):
        facts = {"kernels": kernels, "backend": there.get("backend", here.get("backend"))}
    update_environment(run, inference_hosts=[*hosts, machine], inference=spent, **facts)
