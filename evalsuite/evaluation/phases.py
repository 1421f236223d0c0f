"""The build and the score phase, which need the harnesses, in this process or in one of their own.

Importing this module is cheap: a process that only computes responses imports no harness and no pydantic.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite.config import RunConfig
from evalsuite.evaluation.processes.background import Background
from evalsuite.evaluation.processes.workers import WorkerPool, pays_off
from evalsuite.evaluation.run_paths import Cell, read_built
from evalsuite.foundation.garbage_collection import collection_paused
from evalsuite.foundation.tracking import Tracker, open_tracker
from evalsuite.models.checkpoints.hashing_ahead import hashing_ahead
from evalsuite.reports.run import is_run_folder

PRELOADED = ("evalsuite.evaluation.score", "evalsuite.protocols.preload")
"""What the workers of a run need, imported once by the process that they are forked from."""

Start = Callable[..., Callable[[], Any]]
"""Takes a function of this module and its arguments after the pool; returns what gives its result."""


@contextmanager
def open_harnesses(config: RunConfig) -> Iterator[tuple[Start, bool]]:
    """Give what starts the functions of this module, and whether this process then has time of its own.

    Runs that are likely to need workers get a process for them, where the harnesses are imported while this
    one imports what runs models. Otherwise a function is called here, when its result is taken.
    """
    if pays_off(config):
        with Background(partial(WorkerPool, None, preload=PRELOADED)) as background:
            yield background.start, True
        return
    workers = None if config.workers == "auto" else config.workers or 1
    with WorkerPool(workers) as pool:
        yield lambda function, *args: partial(function, pool, *args), workers is not None and workers > 1


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


def build(pool: WorkerPool, config: RunConfig, checkpoints: Sequence[str]) -> None:
    """Build the requests of a run, whose benchmarks the workers of `pool` share.

    Raises:
        EvalsuiteError: as `evalsuite.evaluation.evaluate`.
    """
    assert config.suite is not None
    trusted = config.trust_remote_code
    paths = [config.teacher, *checkpoints] if config.teacher else checkpoints
    with hashing_ahead(paths), collection_paused():
        from evalsuite.evaluation.build import build_requests
        from evalsuite.evaluation.checkpoints import describe_checkpoints, diverged_students
        from evalsuite.evaluation.loss_curves import read_curves, rename_curves, write_curves
        from evalsuite.evaluation.plan import resolve_suite

        # Imports transformers.
        described = describe_checkpoints(checkpoints, config.teacher, trust_remote_code=trusted)
    out = Path(config.out)
    curves = read_curves({each.weights_id: each.training for each in described})
    resolved = resolve_suite(
        config.suite, described, limit=config.limit, max_length=config.max_length, only=config.batches
    )
    before = read_built(out).labels if is_run_folder(out) else {}
    manifest = build_requests(
        out,
        resolved,
        described,
        config.data,
        diverged=diverged_students(config.checkpoints),
        skip_missing=config.skip_missing,
        strict=config.strict,
        trust_remote_code=trusted,
        quiet=config.quiet,
        pool=pool,
    )
    rename_curves(out, before, manifest.labels)
    write_curves(out, {manifest.labels[weights_id]: data for weights_id, data in curves.items()})


def import_scoring(pool: WorkerPool) -> None:
    """Import what `score` needs, in a process that has nothing else to do."""
    import evalsuite.evaluation.score
    import evalsuite.reports.records.score_table  # noqa: F401


def score(pool: WorkerPool, config: RunConfig) -> ScoreResult:
    """Score the responses of a run, whose cells the workers of `pool` share.

    Raises:
        EvalsuiteError: as `evalsuite.evaluation.evaluate`.
    """
    from evalsuite.evaluation.score import score as score_run
    from evalsuite.reports.records.score_table import write_scores

    out = Path(config.out)
    merged: dict[str, int] = {}
    if config.merge_shards:
        from evalsuite.evaluation.shards.merge import merge_shards

        merged = merge_shards(out, [Path(each) for each in config.merge_shards])
    with run_tracker(config) as tracker:
        missing = score_run(
            out,
            read_built(out),
            pool=pool,
            benchmarks=config.batches,
            trust_remote_code=config.trust_remote_code,
            quiet=config.quiet,
            on_cell=partial(_track_scores, tracker, out),
        )
    return ScoreResult(missing=missing, scores=write_scores(out), merged=merged, errors=count_errors(out))


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
