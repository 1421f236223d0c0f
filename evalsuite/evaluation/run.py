"""`evaluate`: run a suite on checkpoints, resumable, in up to three phases (build, infer, score)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalsuite.config import Phase, RunConfig
from evalsuite.evaluation import phases
from evalsuite.evaluation.checkpoints import diverged_students, expand_folders
from evalsuite.evaluation.environment import coverage_notices, update_environment
from evalsuite.evaluation.inference.warm_up import prepare_workers, serves_any
from evalsuite.evaluation.inputs import check_inputs
from evalsuite.evaluation.run_paths import read_built, responses_folder, shared_folder
from evalsuite.executors import Executor, open_executor
from evalsuite.foundation import locked
from evalsuite.foundation.tracking import Tracker, check_tracker
from evalsuite.models.checkpoints.hashing_ahead import hashing_ahead
from evalsuite.reports.run import Checkpoint, is_run_folder, read_environment

if TYPE_CHECKING:
    from evalsuite.evaluation.inference.worker import EngineChoice, PreloadedEngine


@dataclass
class Summary:
    """Result of `evaluate`, as text by `str`."""

    run: Path
    computed: dict[str, int] = field(default_factory=dict)
    """Responses computed by this call, per checkpoint; the others were cached."""
    shared: dict[str, int] = field(default_factory=dict)
    """Responses that an earlier run in another folder has computed, per checkpoint."""
    failed: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Responses that are errors, per checkpoint: their number, and the reason of one."""
    merged: dict[str, int] = field(default_factory=dict)
    """New responses from shards, per checkpoint."""
    missing: int = 0
    """Responses that are still missing."""
    way_out: str = "repeat the command to resume"
    """What computes them."""
    scores: Any = None
    """The table of `evalsuite.reports.records.score_table.score_table`, after the score phase."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time per phase."""
    notices: dict[str, str] = field(default_factory=dict)
    """What to know about the engine of a checkpoint, such as why it is a slower one."""
    partial: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Benchmarks with incomplete data: documents available, documents published."""
    errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Score rows without a value, per checkpoint: their number, and the reason of one."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Benchmarks, or single contexts of them, that are left out, and why."""
    unread: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Label → further contexts that this checkpoint is not evaluated on, and why."""

    def __str__(self) -> str:
        lines = [] if self.scores is None or self.scores.empty else [_table(self.scores), ""]
        if self.computed:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.computed.items())
            lines.append(f"computed responses: {counts}")
        if self.shared:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.shared.items())
            lines.append(f"responses of earlier runs (evalsuite cache): {counts}")
        # After scoring, errors are counted per document instead.
        lines += [
            f"{label}: {count:,} responses are errors, e.g. {reason}"
            for label, (count, reason) in ({} if self.errors else self.failed).items()
        ]
        if self.merged:
            counts = ", ".join(f"{label} {count:,}" for label, count in self.merged.items())
            lines.append(f"merged responses: {counts}")
        if self.missing:
            lines.append(f"{self.missing:,} responses are missing; {self.way_out}")
        lines += [
            f"{label}: {count:,} documents failed, e.g. {reason}"
            for label, (count, reason) in self.errors.items()
        ]
        lines += coverage_notices(self.partial, self.left_out, self.unread)
        lines += [f"{label}: {notice}" for label, notice in self.notices.items()]
        spent = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return "\n".join([*lines, f"{spent}; run folder: {self.run}"])


def _table(scores: Any) -> str:
    """Return main metrics as text: one row per benchmark, protocol and context, one column per checkpoint."""
    import numpy as np
    import pandas as pd

    main = scores[scores["main"]].copy()
    # The score table holds log perplexities; here they are exponentiated.
    main["score"] = main["score"].where(main["direction"] != "lower", np.exp(main["score"]))
    context = main["context"].map(lambda value: "" if pd.isna(value) else f"@{int(value)}")
    main["row"] = main["benchmark"] + context + " " + main["protocol"] + " " + main["metric"]
    table = main.pivot_table(index="row", columns="label", values="score", sort=False, aggfunc="mean")
    table.insert(0, "documents", main.groupby("row", sort=False)["documents"].max())
    table.index.name, table.columns.name = None, None
    # Perplexities have no upper bound; digits would widen every column.
    return str(table.to_string(float_format=lambda value: f"{value:.3f}" if value < 1e6 else f"{value:.2e}"))


def evaluate(config: RunConfig) -> Summary:
    """Evaluate checkpoints on a suite.

    Repeating the call resumes an interrupted run; a call with further checkpoints adds them to the run. The
    infer phase alone needs the run folder, the checkpoints and `evalsuite.models`, and accepts checkpoints
    that are new to the run if requests exist for their tokenizer; the score phase alone needs the run folder.

    Raises:
        ConfigError: a suite, benchmark, engine or executor that is not valid.
        DataError: missing, empty or invalid data; an incomplete loss curve of a student.
        CheckpointError: a checkpoint that cannot be loaded.
        RunFolderError: a folder that holds another run, is in use, or cannot be written.
    """
    out, builds, infers = Path(config.out), "build" in config.phases, "infer" in config.phases
    summary = Summary(run=out)
    with ExitStack() as stack:
        # An interrupted machine exports its responses, too.
        stack.callback(_export_shard, config)
        executor = stack.enter_context(closing(open_executor(config.executor, config.executor_args)))
        if config.track is not None:
            check_tracker(config.track)
        checkpoints = expand_folders(config.checkpoints)
        check_inputs(config, checkpoints)
        start, has_time = stack.enter_context(phases.open_harnesses(config))
        if infers:
            stack.enter_context(hashing_ahead(_hashed_here(config, checkpoints)))
        # An engine that may refuse the run does so before anything is written. Any other one is imported
        # while another process builds.
        if infers and not (builds and serves_any(config)):
            _prepare_inference(config, executor, checkpoints)
        stack.enter_context(locked(out / ".lock", wait=False))
        preloaded: PreloadedEngine | None = None
        if builds:
            built = start(phases.build, config, checkpoints)
            if infers and serves_any(config):
                _prepare_inference(config, executor, checkpoints)
            with _phase(config, "build", summary):
                if infers and has_time:
                    preloaded = _preload(config, config.teacher or checkpoints[0])
                built()
            if "score" in config.phases:
                start(phases.import_scoring)
        if infers:
            with _phase(config, "infer", summary):
                _infer(config, checkpoints, executor, summary, preloaded)
            preloaded = None
        if "score" in config.phases:
            with _phase(config, "score", summary):
                scored = start(phases.score, config)
                # Imported while another process scores: the result has a table of pandas.
                import pandas as pd  # noqa: F401

                found = scored()
                if not infers:
                    summary.way_out = "they are computed without --score-only"
                summary.missing, summary.scores = found.missing, found.scores
                summary.merged, summary.errors = found.merged, found.errors
        manifest = read_built(out)
        summary.partial, summary.left_out = manifest.partial, manifest.left_out
        diverged = diverged_students(config.checkpoints)
        summary.notices = {each.path: f"{each.why}; it is left out" for each in diverged}
        summary.notices |= {
            label: notice
            for weights_id, label in manifest.labels.items()
            if weights_id in manifest.engines and (notice := manifest.engines[weights_id].notice)
        }
    return summary


def _export_shard(config: RunConfig) -> None:
    if config.export_shard is not None and any(responses_folder(Path(config.out)).glob("*.jsonl")):
        from evalsuite.evaluation.shards.export import export_shard

        export_shard(Path(config.out), Path(config.export_shard))


@contextmanager
def _phase(config: RunConfig, phase: Phase, summary: Summary) -> Iterator[None]:
    """Record the configuration and the time of a phase when it ends."""
    out, started = summary.run, time.monotonic()
    yield
    summary.unread = read_built(out).unread
    update_environment(out, config=read_environment(out).get("config", {}) | {phase: config.record(phase)})
    summary.seconds[phase] = time.monotonic() - started


def _prepare_inference(config: RunConfig, executor: Executor, checkpoints: Sequence[str]) -> None:
    """Start the workers of inference, import the engine, and let it refuse what it cannot serve."""
    prepare_workers(config, executor)
    from evalsuite.evaluation.inference.engines import check_servable

    check_servable(config, [path for path in (config.teacher, *checkpoints) if path is not None])


def _hashed_here(config: RunConfig, checkpoints: Sequence[str]) -> Sequence[str]:
    """Checkpoints whose weights this process will hash: those that a run without a build does not know yet,
    or the first that it runs itself."""
    if "build" not in config.phases:
        out = Path(config.out)
        known = {each.path for each in read_built(out).checkpoints} if is_run_folder(out) else ()
        return [path for path in checkpoints if path not in known]
    first = [config.teacher] if config.teacher else checkpoints[:1]
    return first if serves_any(config) and _runs_here(config) else []


def _runs_here(config: RunConfig) -> bool:
    """Whether this process runs checkpoints, one after the other."""
    return config.executor == "local" and config.executor_args.get("num_workers", 1) == 1


def _preload(config: RunConfig, path: str) -> "PreloadedEngine | None":
    """Load the first engine while other processes build, if this process runs it on a GPU."""
    from evalsuite.evaluation.inference.engines import resolve_device
    from evalsuite.evaluation.inference.worker import PreloadedEngine
    from evalsuite.models.engines import engine_type

    own_process = _runs_here(config) and not engine_type(config.engine, config.engine_args).opens_unloaded
    device, _ = resolve_device(config.device, config.dtype)
    if not own_process or config.trust_remote_code or not device.startswith("cuda"):
        return None
    # Whether a `max_length` extends the checkpoint shows when its config is read.
    return None if config.max_length is not None else PreloadedEngine(path, _engine_choice(config))


def _engine_choice(config: RunConfig) -> "EngineChoice":
    from evalsuite.evaluation.inference.worker import EngineChoice

    return EngineChoice(
        engine=config.engine,
        engine_args=config.engine_args,
        device=config.device,
        dtype=config.dtype,
        trust_remote_code=config.trust_remote_code,
    )


def _infer(
    config: RunConfig,
    checkpoints: Sequence[str],
    executor: Executor,
    summary: Summary,
    preloaded: "PreloadedEngine | None",
) -> None:
    from evalsuite.evaluation.inference.collect import infer
    from evalsuite.evaluation.inference.engines import register_checkpoints, select_checkpoints
    from evalsuite.models.engines import engine_type

    out = summary.run
    manifest = read_built(out)
    if "build" not in config.phases:
        manifest = register_checkpoints(
            out, manifest, checkpoints, config.checkpoints, trust_remote_code=config.trust_remote_code
        )
    paths = [path for path in (config.teacher, *checkpoints) if path is not None]
    selected: Sequence[Checkpoint] = manifest.checkpoints
    if paths:
        selected = select_checkpoints(manifest, paths, trust_remote_code=config.trust_remote_code)
    if left := [each.label for each in manifest.checkpoints if each not in selected]:
        summary.way_out = f"name {', '.join(left)} with --checkpoint, too"
    for checkpoint in selected:
        engine_type(config.engine, config.engine_args, manifest.limit(checkpoint).extension)
    with phases.run_tracker(config) as tracker:
        done = infer(
            out,
            manifest,
            selected,
            _engine_choice(config),
            executor,
            protocols=config.protocols,
            batches=config.batches,
            shared=shared_folder() if config.cache else None,
            quiet=config.quiet,
            on_checkpoint=partial(_track_inference, tracker),
            preloaded=preloaded,
        )
    summary.computed = {label: stats.computed for label, stats in done.items()}
    summary.shared = {label: stats.shared for label, stats in done.items() if stats.shared}
    summary.failed = {label: (stats.failed, stats.reason) for label, stats in done.items() if stats.failed}


def _track_inference(tracker: Tracker | None, label: str, stats: Any) -> None:
    """Log how many responses a checkpoint computed, and how many a second, loading included."""
    if tracker is not None and stats.computed:
        rate = stats.computed / stats.seconds
        tracker.log(
            {f"{label}/infer/responses": stats.computed, f"{label}/infer/responses_per_second": rate}, 0
        )
