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
from evalsuite.foundation import DataError, RunFolderError, append_jsonl, write_json
from evalsuite.models.inference.response_cache import read_responses, response_from_dict
from evalsuite.models.inference.settling import rounding, settle

Key = tuple[Any, ...]
"""Request hash, sampling and seed."""


def merge_shards(run: Path, shards: Sequence[Path]) -> dict[str, int]:
    """Merge the responses of other machines into a run.

    Of two responses with the same key, `settle` tells which one counts, in whichever order they come.

    Returns:
        Label → number of responses that were new.

    Raises:
        DataError: an invalid shard, an incomplete loss curve in it, or two responses to one request that
            disagree; nothing is merged.
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
    logs: dict[str, _Log] = {}
    for shard in found:
        for weights_id, names in shard.responses.items():
            label, tolerance = index.labels[weights_id], rounding(engines[weights_id])
            for name, rows in names.items():
                log = logs.setdefault(name, _Log(responses_folder(run) / name, tolerance))
                counts[label] = counts.get(label, 0) + log.add(rows, f"{shard.name}: responses/{name}")
    for log in logs.values():
        append_jsonl(log.path, log.new.values())
    for shard in found:
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


class _Log:
    """One response log of the run, and what shards add to it."""

    def __init__(self, path: Path, tolerance: float) -> None:
        self.path = path
        self.new: dict[Key, dict[str, Any]] = {}
        self._verb = path.name.split(".")[-2]
        self._tolerance = tolerance
        self._known = {
            key: (response, str(path))
            for key, response in read_responses(path, self._verb, tolerance).items()
        }

    def add(self, rows: Iterable[dict[str, Any]], origin: str) -> int:
        """Add the rows that count. Returns their number; raises DataError for a disagreement."""
        before = len(self.new)
        for row in rows:
            key: Key = tuple(row["key"])
            response = response_from_dict(self._verb, row["response"])
            known, source = self._known.get(key, (None, ""))
            settled = response if known is None else settle(known, response, self._tolerance)
            if settled is None:
                request = "/".join(map(str, key))
                raise DataError(
                    f"{origin}: the response to request {request} differs from that in {source}; remove the "
                    "wrong one"
                )
            # Equal responses, of which `settle` may return either, are not stored twice.
            if known is None or settled != known:
                self._known[key], self.new[key] = (response, origin), row
        return len(self.new) - before


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
