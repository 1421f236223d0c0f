"""Write imported logs as run folders, after checking that they can be compared."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from evalsuite.foundation import ConfigError, DataError, content_hash, nearest
from evalsuite.reports.imports.frozen import FrozenLookup, onto_frozen
from evalsuite.reports.imports.identity import identity_of, labels_of, without_secrets
from evalsuite.reports.imports.importer import (
    IMPORTERS,
    ImportedBenchmark,
    ImportedLog,
    ImportedSample,
    KnownBenchmark,
    Lookup,
)
from evalsuite.reports.records.schema import ScoreRow
from evalsuite.reports.records.score_files import ScoreFileInfo, ScorerVersion, write_score_file
from evalsuite.reports.run import (
    IMPORTED,
    Benchmark,
    Checkpoint,
    Manifest,
    ProtocolSettings,
    write_environment,
    write_manifest,
)

UNKNOWN = KnownBenchmark(title="", category="other")


def import_logs(
    sources: Sequence[tuple[str, Path]],
    out: Path,
    *,
    lookup: Lookup | None = None,
    frozen: FrozenLookup | None = None,
    benchmarks: Collection[str] = (),
) -> list[Path]:
    """Read logs of other harnesses and write one run folder for each.

    Args:
        sources: (importer, path) pairs; a path may hold the logs of several checkpoints.
        out: folder that the run folders are written to, as `<out>/<number>-<label>`.
        lookup: finds title, category, chance level and main metric of a benchmark by its name.
        frozen: finds the frozen rows of a harness's task, whose ids its documents get; None: documents have
            ids of their own, by which logs of one harness are paired.
        benchmarks: names of the benchmarks to import; all if empty.

    Returns:
        The run folders.

    Raises:
        ConfigError: an unknown importer or benchmark.
        DataError: a log that is invalid or has no samples, a document with two samples, one benchmark of one
            checkpoint in two logs, or one benchmark evaluated in two ways (version, metric, few-shot
            examples, sampling): such scores cannot be paired.
    """
    logs = [log for name, path in sources for log in IMPORTERS.get_or_raise(name, "--import").read(path)]
    logs = [replace(log, label=label) for log, label in zip(logs, labels_of(logs), strict=True)]
    read = _weighted(
        [
            _Read(log, chosen if frozen is None else onto_frozen(log, chosen, frozen))
            for log, chosen in _selected(logs, benchmarks)
        ]
    )
    plans = [_plan(each, lookup or (lambda name: None)) for each in read]
    _refuse_repeats(read)
    _refuse_other_settings(read, plans)
    runs = []
    for number, (each, plan) in enumerate(zip(read, plans, strict=True), 1):
        run = Path(out) / f"{number}-{_slug(each.log.label) or 'checkpoint'}"
        _write(run, each, plan)
        runs.append(run)
    return runs


class _Read(NamedTuple):
    """A log and its benchmarks, read."""

    log: ImportedLog
    benchmarks: tuple[ImportedBenchmark, ...]


def weights_id(log: ImportedLog) -> str:
    """Identity of the weights, as far as the log states it."""
    return content_hash(dict(log.identity))


def _selected(
    logs: Sequence[ImportedLog], names: Collection[str]
) -> Iterator[tuple[ImportedLog, tuple[ImportedBenchmark, ...]]]:
    """Read the wanted benchmarks of each log; logs that have none of them are left out."""
    known = {name for log in logs for name in log.benchmarks}
    for name in names:
        if name not in known:
            raise ConfigError(f"--benchmark {name}: no imported log has it{nearest(name, known)}")
    for log in logs:
        chosen = [read for name, read in log.benchmarks.items() if not names or name in names]
        if chosen:
            yield log, tuple(_finite(log.harness, read()) for read in chosen)


def _finite(harness: str, benchmark: ImportedBenchmark) -> ImportedBenchmark:
    """The benchmark, where a sample with a score that is no number is an error of its document."""
    samples = []
    for sample in benchmark.samples:
        wrong = next((each for each in sample.values.items() if not isfinite(each[1])), None)
        if wrong:
            why = sample.error or f"{harness}: '{wrong[0]}' = {wrong[1]}"
            sample = replace(sample, values={}, choices={}, outcome="error", error=why)
        samples.append(sample)
    return replace(benchmark, samples=tuple(samples))


def _weighted(logs: Sequence[_Read]) -> list[_Read]:
    """Settle the weights in groups that one log leaves open by what others say of the same benchmark."""
    left: dict[tuple[str, str], tuple[float | None, ...]] = {}

    def common(log: ImportedLog, benchmark: ImportedBenchmark) -> tuple[float | None, ...]:
        known = left.get((log.harness, benchmark.name), benchmark.group_weights)
        # Logs that contradict each other keep their own, and are refused where their plans are merged.
        return tuple(each for each in known if each in benchmark.group_weights) or benchmark.group_weights

    for log, benchmarks in logs:
        for each in benchmarks:
            left[log.harness, each.name] = common(log, each)
    return [
        _Read(log, tuple(replace(each, group_weights=common(log, each)) for each in benchmarks))
        for log, benchmarks in logs
    ]


def _refuse_repeats(logs: Sequence[_Read]) -> None:
    """Refuse two logs of one checkpoint on one benchmark: neither is known to be the right one."""
    seen: dict[tuple[str, str, str], ImportedBenchmark] = {}
    for log, benchmarks in logs:
        for benchmark in benchmarks:
            key = weights_id(log), benchmark.name, benchmark.protocol
            if key in seen:
                raise DataError(
                    f"{benchmark.source}: '{log.label}' has another log of '{benchmark.name}', "
                    f"{seen[key].source}; pass the path of one of them"
                )
            seen[key] = benchmark


def _refuse_other_settings(logs: Sequence[_Read], plans: Sequence[Manifest]) -> None:
    """Refuse benchmarks of equal name that were evaluated in different ways."""
    seen: dict[tuple[str, str], tuple[ImportedBenchmark, dict[str, object]]] = {}
    for (log, benchmarks), plan in zip(logs, plans, strict=True):
        for benchmark, planned in zip(benchmarks, plan.benchmarks, strict=True):
            how = planned.protocols[benchmark.protocol]
            settings = {
                "harness": log.harness,
                "task version": benchmark.version,
                "metric": how.metric,
                "num_fewshot": how.num_fewshot,
                "sampling": how.sampling,
                "seeds": how.seeds,
            }
            first, others = seen.setdefault((planned.name, benchmark.protocol), (benchmark, settings))
            for name, value in settings.items():
                if value != others[name]:
                    raise DataError(
                        f"{benchmark.source}: '{benchmark.name}' has {name} {value!r}, but {others[name]!r} "
                        f"in {first.source}: these scores cannot be paired; evaluate both in the same way, "
                        "or import other benchmarks only (--benchmark)"
                    )


def _plan(read: _Read, lookup: Lookup) -> Manifest:
    log = read.log
    plans: dict[str, Benchmark] = {}
    for benchmark in read.benchmarks:
        plan = _benchmark_plan(benchmark, lookup)
        if plan.name in plans:
            raise DataError(
                f"{benchmark.source}: '{benchmark.name}' and another benchmark of this log are both named "
                f"'{plan.name}' in reports; import one of them with --benchmark"
            )
        plans[plan.name] = plan
    checkpoint = Checkpoint(
        label=log.label,
        weights_id=weights_id(log),
        role="student",
        path=log.path,
        parameters=log.parameters,
    )
    return Manifest(
        suite=f"{IMPORTED}{log.harness}",
        created=log.created,
        benchmarks=tuple(plans.values()),
        checkpoints=(checkpoint,),
    )


def _benchmark_plan(benchmark: ImportedBenchmark, lookup: Lookup) -> Benchmark:
    itself = lookup(benchmark.name)
    known = itself or (lookup(benchmark.group) if benchmark.group else None) or UNKNOWN
    metric = _main_metric(benchmark, known)
    is_perplexity = metric in benchmark.units
    chance = known.chances.get(benchmark.protocol)
    if known is UNKNOWN and any(sample.chance is not None for sample in benchmark.samples):
        chance = "per_document"
    return Benchmark(
        name=_slug(benchmark.name) or content_hash(benchmark.name),
        title=itself.title if itself else benchmark.name,
        category=known.category,
        license=known.license,
        citation=known.citation,
        chance=None if is_perplexity else chance,
        group=benchmark.group,
        recall=dict(known.recall),
        group_weight=benchmark.group_weights[0],
        protocols={
            benchmark.protocol: ProtocolSettings(
                metric=metric,
                documents=benchmark.documents,
                direction="lower" if is_perplexity else "higher",
                units=benchmark.units.get(metric),
                num_fewshot=benchmark.num_fewshot,
                sampling=benchmark.sampling,
                seeds=tuple(sorted({sample.seed for sample in benchmark.samples})),
            )
        },
    )


def _main_metric(benchmark: ImportedBenchmark, known: KnownBenchmark) -> str:
    """The metric that tables show: evalsuite's for a known benchmark, else the first of the log.

    Raises:
        DataError: the log has no metric whose scores are fractions, nor a perplexity.
    """
    chosen = known.metrics.get(benchmark.protocol)
    problems = []
    for metric in dict.fromkeys([*([chosen] if chosen in benchmark.metrics else []), *benchmark.metrics]):
        wrong = _wrong(benchmark, metric)
        if wrong is None:
            return metric
        problems.append(wrong)
    raise DataError(
        f"{benchmark.source}: '{benchmark.name}' has no metric with a score per document: "
        f"{'; '.join(problems) or 'the log lists none'}. Import other benchmarks only (--benchmark)"
    )


def _wrong(benchmark: ImportedBenchmark, metric: str) -> str | None:
    """Why a metric cannot be compared by document."""
    for sample in benchmark.samples:
        value = sample.values.get(metric)
        if value is None and sample.error is None:
            return f"{sample.place}: '{metric}' is missing"
        if value is not None and metric not in benchmark.units and not 0 <= value <= 1:
            return f"{sample.place}: '{metric}' = {value:g} is no fraction between 0 and 1"
    return None


def _write(run: Path, read: _Read, plan: Manifest) -> None:
    log = read.log
    settings = {"harness": log.harness, "version": log.harness_version, **without_secrets(log.settings)}
    # Two logs that differ in what changes no number are of one checkpoint.
    relevant = identity_of(log.harness, version=log.harness_version, **log.settings)
    fingerprint = content_hash([weights_id(log), relevant])
    for old in (run / "scores").glob("*.parquet"):
        old.unlink()
    for benchmark, planned in zip(read.benchmarks, plan.benchmarks, strict=True):
        rows = _rows(benchmark, planned, plan.checkpoints[0], fingerprint)
        scorer = ScorerVersion(
            scorer=benchmark.name,
            version=benchmark.version,
            harness=log.harness,
            harness_version=log.harness_version,
        )
        write_score_file(run, rows, ScoreFileInfo(scorer=scorer, inputs="", rows=len(rows)))
    write_environment(run, {"imported": {"log": str(log.source), **settings}})
    write_manifest(run, plan)


def _rows(
    benchmark: ImportedBenchmark, planned: Benchmark, checkpoint: Checkpoint, fingerprint: str
) -> list[ScoreRow]:
    how = planned.protocols[benchmark.protocol]
    is_perplexity = how.direction == "lower"
    rows = []
    for sample, doc_id in zip(benchmark.samples, _doc_ids(benchmark.samples), strict=True):
        try:
            row = ScoreRow(
                weights_id=checkpoint.weights_id,
                fingerprint=fingerprint,
                benchmark=planned.name,
                protocol=benchmark.protocol,
                seed=sample.seed,
                context=None,
                doc_id=doc_id,
                prompt_hash=content_hash(sample.prompt),
                sampling=benchmark.sampling,
                checkpoint=checkpoint.label,
                values=dict(sample.values),
                chance=None if is_perplexity else sample.chance,
                outcome=sample.outcome,
                error=sample.error,
                choices=dict(sample.choices),
                detail=dict(sample.detail),
                cluster=sample.cluster,
            )
        except DataError as error:
            raise DataError(f"{sample.place}: {error}") from error
        rows.append(row)
    return rows


def _doc_ids(samples: Sequence[ImportedSample]) -> list[str]:
    """Id of each frozen document; else its hash with its occurrence among equal ones of the same seed."""
    counts: dict[tuple[int, str], int] = {}
    found = []
    for sample in samples:
        key = sample.seed, content_hash(sample.document)
        counts[key] = counts.get(key, -1) + 1
        found.append(sample.doc_id or content_hash([key[1], counts[key]]))
    return found


def _slug(name: str) -> str:
    """The name in the characters that files and plans allow."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-.+_")[:80]
