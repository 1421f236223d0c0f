"""The phases of a run that need the harnesses, wherever they are carried out.

Importing this module is cheap: a process that only computes responses imports no harness and no pydantic.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.config import RunConfig
from evalsuite.evaluation.checkpoints import expand_folders
from evalsuite.evaluation.inputs import check_inputs
from evalsuite.evaluation.processes.background import Background, Calls, Here
from evalsuite.evaluation.processes.workers import WorkerPool, pays_off, start_importing
from evalsuite.evaluation.run_paths import Cell, read_built
from evalsuite.foundation.tracking import Tracker, open_tracker
from evalsuite.reports.run import is_run_folder

if TYPE_CHECKING:
    from evalsuite.evaluation.checkpoints import RunCheckpoint

PRELOADED = ("evalsuite.evaluation.score", "evalsuite.protocols.preload")
"""What the workers of a run need, imported once by the process that they are forked from."""
PRELOADED_TO_SCORE = ("evalsuite.evaluation.processes.preload_scoring",)
"""The same of workers that score responses."""

_prepared: Background | None = None
"""The process that the next run of this one uses."""


@dataclass(frozen=True, kw_only=True)
class ScoreResult:
    """What the score phase found."""

    missing: int
    """Responses that are still missing."""
    scores: Any
    """The table of `evalsuite.reports.records.score_table.score_table`."""
    merged: dict[str, int]
    """New responses from shards, per checkpoint."""
    errors: dict[str, tuple[int, str]]
    """See `count_errors`."""


class HarnessPhases:
    """Builds requests and scores responses.

    Args:
        pool: its workers share the benchmarks.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._described: tuple[object, list[RunCheckpoint]] | None = None

    def describe(self, config: RunConfig, checkpoints: Sequence[str]) -> None:
        """Read the metadata of the checkpoints for `build`. Raises as `describe_checkpoints`."""
        from evalsuite.evaluation.checkpoints import describe_checkpoints

        chosen = tuple(checkpoints), config.teacher, config.trust_remote_code
        if self._described is None or self._described[0] != chosen:
            found = describe_checkpoints(
                checkpoints, config.teacher, trust_remote_code=config.trust_remote_code
            )
            self._described = chosen, found

    def build(self, config: RunConfig, checkpoints: Sequence[str]) -> None:
        """Build the requests of a run. Raises as `evalsuite.evaluation.evaluate`."""
        from evalsuite.evaluation.build import build_requests
        from evalsuite.evaluation.checkpoints import diverged_students
        from evalsuite.evaluation.loss_curves import read_curves, rename_curves, write_curves
        from evalsuite.evaluation.plan import resolve_suite

        assert config.suite is not None
        self.describe(config, checkpoints)
        assert self._described is not None
        _, described = self._described
        out = Path(config.out)
        curves = read_curves({each.weights_id: each.training for each in described})
        resolved = resolve_suite(config.suite, described, limit=config.limit, max_length=config.max_length)
        before = read_built(out).labels if is_run_folder(out) else {}
        manifest = build_requests(
            out,
            resolved,
            described,
            config.data,
            diverged=diverged_students(config.checkpoints),
            skip_missing=config.skip_missing,
            strict=config.strict,
            trust_remote_code=config.trust_remote_code,
            quiet=config.quiet,
            pool=self._pool,
        )
        rename_curves(out, before, manifest.labels)
        write_curves(out, {manifest.labels[weights_id]: data for weights_id, data in curves.items()})

    def prepare_score(self) -> None:
        """Import what `score` needs, for a process that has nothing else to do."""
        import evalsuite.evaluation.score
        import evalsuite.reports.records.score_table  # noqa: F401

    def score(self, config: RunConfig) -> ScoreResult:
        """Score the responses of a run. Raises as `evalsuite.evaluation.evaluate`."""
        from evalsuite.evaluation.score import score
        from evalsuite.reports.records.score_table import write_scores

        out = Path(config.out)
        merged: dict[str, int] = {}
        if config.merge_shards:
            from evalsuite.evaluation.shards.merge import merge_shards

            merged = merge_shards(out, [Path(each) for each in config.merge_shards])
        with run_tracker(config) as tracker:
            missing = score(
                out,
                read_built(out),
                pool=self._pool,
                trust_remote_code=config.trust_remote_code,
                quiet=config.quiet,
                on_cell=partial(_track_scores, tracker, out),
            )
        return ScoreResult(missing=missing, scores=write_scores(out), merged=merged, errors=count_errors(out))


def prepare(config: RunConfig) -> None:
    """Start a process for the phases of this run if they are likely to need workers.

    There the harnesses are imported, while this process imports what runs models. Inputs are checked first: a
    refused run would wait for these imports wherever its output is read to the end.

    Raises:
        EvalsuiteError: as `check_inputs`.
    """
    global _prepared
    if pays_off(config):
        check_inputs(config, expand_folders(config.checkpoints))
        _prepared = Background(partial(_phases_with_workers, to_score="score" in config.phases))


def open_phases(config: RunConfig) -> Calls:
    """Return what carries out the phases of a run: the process that was prepared for it, or this one."""
    global _prepared
    prepared, _prepared = _prepared, None
    return prepared or Here(partial(_phases, None if config.workers == "auto" else config.workers or 1))


def works_in_parallel(config: RunConfig, calls: Calls) -> bool:
    """Whether this process has time of its own while the requests of a run are built."""
    if isinstance(calls, Background):
        return True
    return isinstance(config.workers, int) and config.workers > 1


@contextmanager
def _phases(workers: int | None) -> Iterator[HarnessPhases]:
    with WorkerPool(workers) as pool:
        yield HarnessPhases(pool)


def _phases_with_workers(*, to_score: bool) -> AbstractContextManager[HarnessPhases]:
    start_importing(PRELOADED + (PRELOADED_TO_SCORE if to_score else ()))
    return _phases(None)


def run_tracker(config: RunConfig) -> AbstractContextManager[Tracker | None]:
    """Open the tracker of a run; None without one."""
    if config.track is None:
        return nullcontext()
    out = Path(config.out)
    return open_tracker(config.track, out, project="evalsuite-run", run=out.resolve().name, config={})


def _track_scores(tracker: Tracker | None, out: Path, cell: Cell) -> None:
    """Log the main metric of every checkpoint on a benchmark, at its context in tokens (0: none)."""
    from evalsuite.reports.records.score_table import score_table

    if tracker is None:
        return
    scores: Any = score_table(out, only=(cell.benchmark, cell.protocol))
    if scores.empty:
        return
    for step, steps in scores[scores["main"]].fillna({"context": 0}).groupby("context"):
        keys = ["label", "benchmark", "protocol", "metric"]
        means = steps.groupby(keys, observed=True)["score"].mean().dropna()
        tracker.log({"/".join(key): float(value) for key, value in means.items()}, int(step))


def count_errors(run: Path) -> dict[str, tuple[int, str]]:
    """Return the number of score rows with an error per checkpoint, and the first one's reason."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: dict[str, tuple[int, str]] = {}
    for path in sorted((run / "scores").glob("*.parquet")):
        table = pq.read_table(path, columns=["checkpoint", "outcome", "error"])
        for row in table.filter(pc.field("outcome") == "error").to_pylist():
            count, reason = found.get(row["checkpoint"], (0, row["error"]))
            found[row["checkpoint"]] = count + 1, reason
    return found
