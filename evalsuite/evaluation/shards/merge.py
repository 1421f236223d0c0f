"""Merging of shards into a run: all of them are validated, then all of them are written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from evalsuite.evaluation.checkpoints import CheckpointRegistry
from evalsuite.evaluation.environment import update_environment
from evalsuite.evaluation.loss_curves import write_curves
from evalsuite.evaluation.run_paths import read_built, responses_folder
from evalsuite.evaluation.shards.validate import Shard, open_shard, read_shard, request_demands
from evalsuite.foundation import DataError, RunFolderError, append_jsonl
from evalsuite.models.inference.response_cache import read_responses, response_from_dict
from evalsuite.models.inference.settling import rounding, settle
from evalsuite.reports.run import Manifest, read_environment, still_diverged, write_manifest

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
    manifest, found = read_built(run), []
    demands = cache(partial(request_demands, run, manifest))
    for path in shards:
        with open_shard(Path(path)) as folder:
            shard = read_shard(folder, str(path), run, manifest, demands)
        manifest = _with_shard(manifest, shard, run)
        found.append(shard)
    counts: dict[str, int] = {}
    logs: dict[str, _Log] = {}
    for shard in found:
        for weights_id, names in shard.responses.items():
            label, tolerance = manifest.labels[weights_id], rounding(manifest.engines[weights_id].versions)
            for name, rows in names.items():
                log = logs.setdefault(name, _Log(responses_folder(run) / name, tolerance))
                counts[label] = counts.get(label, 0) + log.add(rows, f"{shard.name}: responses/{name}")
    for log in logs.values():
        append_jsonl(log.path, log.new.values())
    for shard in found:
        _write_facts(run, shard, manifest.labels)
    write_manifest(run, manifest)
    return counts


def _with_shard(manifest: Manifest, shard: Shard, run: Path) -> Manifest:
    """Return the manifest with the engines of a shard, its checkpoints, and what diverged.

    A teacher of the shard is that of a run without one, and a student of any other run.
    """
    found = list(manifest.checkpoints)
    registry = CheckpointRegistry(found)
    has_teacher = any(each.role == "teacher" for each in found)
    found += [
        replace(each, label=registry.add(each), role="student" if has_teacher else each.role)
        for each in shard.checkpoints
        if each.weights_id not in registry.labels
    ]
    for weights_id, engine in shard.engines.items():
        before = manifest.engines.get(weights_id, engine)
        if before.fingerprint != engine.fingerprint:
            raise RunFolderError(
                f"{shard.name}: responses of {registry.labels[weights_id]} have fingerprint "
                f"{engine.fingerprint}; those in {run} have {before.fingerprint} (another device, dtype or "
                "version)"
            )
    return replace(
        manifest,
        checkpoints=tuple(found),
        engines=shard.engines | manifest.engines,
        diverged=still_diverged((*manifest.diverged, *shard.diverged), found),
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
    """Write loss curves and the other machine's facts into the run."""
    write_curves(run, {labels[weights_id]: data for weights_id, data in shard.curves.items()})
    here, there = read_environment(run), shard.environment
    machine = {key: there[key] for key in ("accelerators", "packages", "python", "platform") if key in there}
    # A shard that was itself merged names the machines that responded, which its own need not be.
    responded = there.get("inference_hosts") or [machine]
    hosts = [each for each in here.get("inference_hosts", []) if each not in responded]
    spent = list(here.get("inference", []))
    spent += [each for each in there.get("inference", []) if each not in spent]
    facts: dict[str, Any] = {}
    if kernels := here.get("kernels", {}) | there.get("kernels", {}):
        facts = {"kernels": kernels, "backend": there.get("backend", here.get("backend"))}
    update_environment(run, inference_hosts=[*hosts, *responded], inference=spent, **facts)
