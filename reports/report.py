"""The report: all rows, warnings and sidecar data that outputs are made of, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.analysis.averages import average_rows
from evalsuite.reports.analysis.benchmark_rows import benchmark_rows, drop_rows
from evalsuite.reports.analysis.gaps import GapPool, agreement_of, agreement_over_all, gap_rows
from evalsuite.reports.analysis.pairs import pair_rows
from evalsuite.reports.analysis.paper_comparison import (
    PaperOrder,
    PaperRow,
    paper_orders,
    paper_rows,
)
from evalsuite.reports.analysis.replicates import Replicates, replicates_of
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.analysis.rows import Agreement, AverageRow, BenchmarkRow, DropRow, GapRow, PairRow
from evalsuite.reports.analysis.scopes import ALL, Pool
from evalsuite.reports.analysis.variants import Ablation, ablations_of
from evalsuite.reports.records.loss_curves import LossCurve, read_loss_curves
from evalsuite.reports.records.merging import CellKey, CheckpointEntry, MergedPlan
from evalsuite.reports.records.run_folder import BenchmarkPlan, read_environment
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.sidecars import (
    DoctorResult,
    EfficiencyRow,
    Selection,
    read_doctor,
    read_efficiency,
    read_selections,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All results of a report."""

    tensor: ResultTensor
    scores: tuple[BenchmarkRow, ...]
    drops: tuple[DropRow, ...]
    averages: tuple[AverageRow, ...]
    gaps: tuple[GapRow, ...]
    pairs: tuple[PairRow, ...]
    agreement: Agreement | None
    """Agreement of the protocols on documents evaluated under both."""
    agreement_over_all: Agreement | None
    """Agreement over all benchmarks of each protocol; only if a teacher's generation is below chance."""
    paper_comparison: tuple[PaperRow, ...]
    paper_orders: tuple[PaperOrder, ...]
    replicates: tuple[Replicates, ...]
    doctor: tuple[DoctorResult, ...]
    efficiency: tuple[EfficiencyRow, ...]
    selections: tuple[Selection, ...]
    ablations: tuple[Ablation, ...]
    loss_curves: tuple[LossCurve, ...]
    environments: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    @property
    def checkpoints(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints, each teacher followed by its students."""
        return self.tensor.checkpoints

    @property
    def benchmarks(self) -> tuple[BenchmarkPlan, ...]:
        """All benchmarks, in the order of the plan."""
        return self.tensor.merged.benchmarks

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols that have scores."""
        return tuple(name for name in PROTOCOLS if self.started(name))

    @property
    def teachers(self) -> tuple[int, ...]:
        """Indices of the teachers."""
        return tuple(i for i, checkpoint in enumerate(self.checkpoints) if checkpoint.is_teacher)

    def students(self, teacher: int | None = None) -> tuple[int, ...]:
        """Indices of the students of a teacher, or of all students that have one."""
        return tuple(
            i
            for i, checkpoint in enumerate(self.checkpoints)
            if checkpoint.teacher is not None and teacher in (None, checkpoint.teacher)
        )

    @property
    def documents(self) -> int:
        """Number of compared documents, over benchmarks, protocols and contexts."""
        counts: dict[CellKey, int] = {}
        for cell in self.tensor.cells:
            counts[cell.key] = max(counts.get(cell.key, 0), len(cell.documents))
        return sum(counts.values())

    def incomplete(self, checkpoint: int, benchmark: str, protocol: str) -> tuple[int, int] | None:
        """Documents of an incomplete score, and how many are planned, over all contexts.

        None if the score is complete, not planned, or lacks every document of a benchmark without scores.
        """
        lacking = [
            cell
            for cell in self.tensor.incomplete
            if (cell.checkpoint, cell.benchmark, cell.protocol) == (checkpoint, benchmark, protocol)
        ]
        if not lacking:
            return None
        rows = [
            row
            for row in self.scores
            if (row.checkpoint, row.benchmark, row.protocol) == (checkpoint, benchmark, protocol)
        ]
        documents = sum(cell.documents for cell in lacking) + sum(row.documents for row in rows)
        return documents, documents + sum(cell.planned - cell.documents for cell in lacking)

    def started(self, protocol: str) -> set[str]:
        """Benchmarks with at least one score row under a protocol."""
        scored = {row.benchmark for row in self.scores if row.protocol == protocol}
        return scored | {
            cell.benchmark for cell in self.tensor.incomplete if cell.protocol == protocol and cell.documents
        }

    def average(self, checkpoint: int, protocol: str, scope: str = ALL) -> AverageRow | None:
        """The average row of a checkpoint."""
        for row in self.averages:
            if (row.checkpoint, row.protocol, row.scope) == (checkpoint, protocol, scope):
                return row
        return None

    def gap(self, checkpoint: int, benchmark: str = ALL) -> GapRow | None:
        """The gap row of a student."""
        for row in self.gaps:
            if (row.checkpoint, row.benchmark) == (checkpoint, benchmark):
                return row
        return None


def build_report(runs: Sequence[Path], selection: RunSelection | None = None) -> Report:
    """Read runs and compute everything.

    Args:
        runs: run folders.
        selection: see `load_result_tensor`.

    Raises:
        RunFolderError, DataError, ConfigError: as `load_result_tensor` and the readers of sidecar files.
    """
    tensor = load_result_tensor(runs, selection)
    pools: dict[str, Pool] = {protocol: Pool(tensor, protocol) for protocol in PROTOCOLS}
    averages = [row for pool in pools.values() for row in average_rows(pool)]
    pairs = [row for pool in pools.values() for row in pair_rows(pool)]
    both = GapPool(tensor)
    gaps = gap_rows(both)
    doctor = read_doctor(runs)
    papers = paper_rows(pools["loglikelihood"])
    scores, drops = benchmark_rows(tensor, pools), drop_rows(tensor, pools)
    return Report(
        tensor=tensor,
        scores=tuple(scores),
        drops=tuple(drops),
        averages=tuple(averages),
        gaps=tuple(gaps),
        pairs=tuple(pairs),
        agreement=agreement_of(both),
        agreement_over_all=agreement_over_all(tensor, averages, pairs)
        if any(row.teacher_below_chance for row in gaps)
        else None,
        paper_comparison=tuple(papers),
        paper_orders=tuple(paper_orders(pools["loglikelihood"], papers)),
        replicates=tuple(replicates_of(tensor, averages)),
        doctor=tuple(doctor),
        efficiency=tuple(read_efficiency(runs)),
        selections=tuple(read_selections(runs)),
        ablations=tuple(ablations_of(tensor, pairs, gaps)),
        loss_curves=tuple(read_loss_curves(runs, _labels(tensor.merged))),
        environments=tuple(read_environment(run) for run in runs),
        warnings=(
            *tensor.warnings,
            *_single_documents(tensor),
            *_missing_teachers(tensor),
            *_undefined_recoveries(tensor, averages),
            *_incomplete_averages(tensor, averages),
            *_above_teacher(tensor, averages),
            *_gains_by_benchmark(tensor, drops, gaps),
            *_teachers_below_chance(tensor, gaps),
            *_numerical_artefacts(tensor, gaps, doctor),
        ),
    )


def _labels(merged: MergedPlan) -> list[dict[str, str]]:
    """Per run, a map from its own labels to those of the report."""
    shown = {checkpoint.plan.weights_id: checkpoint.label for checkpoint in merged.checkpoints}
    return [{each.label: shown[each.weights_id] for each in plan.checkpoints} for plan in merged.plans]


def _single_documents(tensor: ResultTensor) -> list[str]:
    """Cells of one document, for which no interval exists."""
    return [
        f"{cell.benchmark.title}: one {'document' if cell.clusters is None else 'cluster of documents'} "
        f"under {cell.protocol} is too few for an average."
        for cell in tensor.cells
        if cell.independent_units < 2
    ]


def _undefined_recoveries(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[str]:
    """Averages over all benchmarks whose recovery is undefined."""
    return [
        f"'{tensor.checkpoints[row.checkpoint].label}': recovery under {row.protocol} is undefined: "
        f"{row.recovery.why}."
        for row in averages
        if row.scope == ALL and tensor.checkpoints[row.checkpoint].teacher is not None and row.recovery.why
    ]


def _missing_teachers(tensor: ResultTensor) -> list[str]:
    """Benchmarks with scores of students but not of their teacher."""
    found = []
    for cell in tensor.cells:
        teachers = {tensor.checkpoints[i].teacher for i in cell.present} - {None}
        for teacher in sorted(index for index in teachers if index is not None):
            if teacher not in cell.present:
                place = f"{cell.benchmark.title}{f' at {cell.context:,} tokens' if cell.context else ''}"
                found.append(
                    f"{place}: the teacher '{tensor.checkpoints[teacher].label}' has no comparable scores "
                    f"under {cell.protocol}; it does not count toward recovery."
                )
    return found


def _incomplete_averages(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[str]:
    """Averages over a part of the benchmarks, grouped by that part."""
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for row in averages:
        if row.scope == ALL and row.missing:
            key = row.protocol, row.missing, row.benchmarks
            groups.setdefault(key, []).append(f"'{tensor.checkpoints[row.checkpoint].label}'")
    found = []
    for (protocol, missing, there), labels in groups.items():
        one = len(labels) == 1
        average = "its average is" if one else "their averages are"
        without_rank = f"and {'is' if one else 'are'} not ranked."
        if len(missing) > len(there):
            text = (
                f"{'has' if one else 'have'} only {', '.join(there)} under {protocol}: {average} over these "
                f"{without_rank}"
            )
        else:
            text = (
                f"{'lacks' if one else 'lack'} {', '.join(missing)} under {protocol}: {average} over the "
                f"other {len(there)} {without_rank}"
            )
        found.append(f"{', '.join(labels)} {text}")
    return found


def _above_teacher(tensor: ResultTensor, averages: Sequence[AverageRow]) -> list[str]:
    """Students that are proven to score above their teacher."""
    found = []
    for protocol in PROTOCOLS:
        labels = [
            f"'{tensor.checkpoints[row.checkpoint].label}'"
            for row in averages
            if (row.scope, row.protocol) == (ALL, protocol)
            and row.recovery.interval is not None
            and row.recovery.interval.low > 1
        ]
        if labels:
            whose = "scores above its" if len(labels) == 1 else "score above their"
            found.append(
                f"{', '.join(labels)} {whose} teacher under {protocol}: recovery above 100 % is learned "
                "during training and may hide losses. The headline names the best other student."
            )
    return found


def _gains_by_benchmark(tensor: ResultTensor, drops: Sequence[DropRow], gaps: Sequence[GapRow]) -> list[str]:
    """Every benchmark on which students are proven to exceed their teacher. A perplexity has no recovery."""
    titles = {benchmark.name: benchmark.title for benchmark in tensor.merged.benchmarks}
    lower = {(cell.benchmark.name, cell.protocol) for cell in tensor.cells if cell.is_perplexity}
    below_chance = {row.benchmark for row in gaps if row.teacher_below_chance}
    found = []
    for protocol in PROTOCOLS:
        gained: dict[str, set[int]] = {}
        for row in drops:
            if row.protocol == protocol and (row.benchmark, protocol) not in lower and row.kind == "gain":
                gained.setdefault(row.benchmark, set()).add(row.checkpoint)
        listed = []
        for name, checkpoints in sorted(gained.items(), key=lambda item: -len(item[1])):
            students = f"{len(checkpoints)} student{'s' if len(checkpoints) > 1 else ''} in {titles[name]}"
            is_below = protocol == "generation" and name in below_chance
            listed.append(f"{students} (the teacher is below chance)" if is_below else students)
        if listed:
            found.append(
                f"Significantly above their teacher under {protocol}: {', '.join(listed)}. Recovery offsets "
                "such gains against losses on other benchmarks."
            )
    return found


def _teachers_below_chance(tensor: ResultTensor, gaps: Sequence[GapRow]) -> list[str]:
    """Teachers whose generation score on documents of both protocols is below chance."""
    found: dict[int, str] = {}
    for row in gaps:
        teacher = tensor.checkpoints[row.checkpoint].teacher
        if (
            row.benchmark == ALL
            and row.teacher_below_chance
            and row.chance is not None
            and teacher is not None
        ):
            unnamed = row.outcomes["teacher"]["extraction_failed"]
            found.setdefault(
                teacher,
                f"On benchmarks with both protocols '{tensor.checkpoints[teacher].label}' itself scores "
                f"{100 * row.generation['teacher']:.1f} % under generation, below the chance level of "
                f"{100 * row.chance:.1f} % ({100 * unnamed:.0f} % of its responses name no choice): its "
                "students can lose little there, so a small gap is weak evidence.",
            )
    return list(found.values())


def _numerical_artefacts(
    tensor: ResultTensor, gaps: Sequence[GapRow], doctor: Sequence[DoctorResult]
) -> list[str]:
    """Failed checks of the doctor, and gaps that its deviations could explain."""
    changed = {examined.weights_id: examined.changed for examined in doctor}
    found = [
        f"Doctor, '{examined.label}': {check.name}: {check.text or check.status}"
        for examined in doctor
        for check in examined.checks
        if check.status != "ok"
    ]
    for row in gaps:
        checkpoint = tensor.checkpoints[row.checkpoint]
        if row.benchmark != ALL or checkpoint.teacher is None:
            continue
        teacher = tensor.checkpoints[checkpoint.teacher]
        bound = changed.get(checkpoint.plan.weights_id, 0.0) + changed.get(teacher.plan.weights_id, 0.0)
        if bound > 0 and abs(row.gap.point) <= bound:
            found.append(
                f"'{checkpoint.label}': its gap of {100 * row.gap.point:.1f} points is within what "
                f"numerical deviations could explain ({100 * bound:.1f} points of changed responses)."
            )
    return found
