"""The report: all rows, warnings and sidecar data that outputs are made of, computed once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.analysis.averages import average_rows
from evalsuite.reports.analysis.benchmark_rows import benchmark_rows, drop_rows
from evalsuite.reports.analysis.gaps import GapPool, agreement_of, agreement_over_all, gap_rows
from evalsuite.reports.analysis.measures.agreement import (
    AgreementPool,
    AgreementRow,
    agreement_rows,
    benchmark_agreement_rows,
    ceiling_rows,
)
from evalsuite.reports.analysis.measures.distances import DistanceRow, distance_rows
from evalsuite.reports.analysis.measures.families import Family, LeftOut, families_of
from evalsuite.reports.analysis.measures.informative import (
    InformativeRow,
    informative_names,
    informative_rows,
)
from evalsuite.reports.analysis.measures.letters import LetterRow, letter_rows
from evalsuite.reports.analysis.measures.probes import ProbeRow, probe_rows
from evalsuite.reports.analysis.measures.recall import (
    RecallCorrelation,
    RecallRow,
    recall_correlations,
    recall_rows,
)
from evalsuite.reports.analysis.measures.scaling import CrossoverRow, ScalingRow, scaling_rows
from evalsuite.reports.analysis.measures.tolerance import ToleranceRow, tolerance_rows
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
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, Pool
from evalsuite.reports.analysis.variants import Ablation, ablations_of
from evalsuite.reports.analysis.warnings import report_warnings
from evalsuite.reports.records.distances import ANSWERS, read_distances
from evalsuite.reports.records.efficiency import EfficiencyRow, read_efficiency
from evalsuite.reports.records.loss_curves import LossCurve, read_loss_curves
from evalsuite.reports.records.merging import CellKey, CheckpointEntry, MergedPlan
from evalsuite.reports.records.probes import read_probes
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.sidecars import (
    DoctorResult,
    Selection,
    read_doctor,
    read_selections,
)
from evalsuite.reports.run import Benchmark, Checkpoint, read_facts

T = TypeVar("T")


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
    informative: tuple[InformativeRow, ...]
    """Every benchmark of every teacher and protocol, with the reason where it is not informative."""
    letters: tuple[LetterRow, ...]
    """Named answers and their distribution, under generation with choices."""
    recall: tuple[RecallRow, ...]
    """Recall numbers, by context and over the contexts."""
    recall_correlations: tuple[RecallCorrelation, ...]
    """Recovery under log-likelihood against a recall number in generation, over the students of a teacher."""
    families: tuple[Family, ...]
    """Students of one curve by training tokens or teacher size, two or more."""
    left_out_of_families: tuple[LeftOut, ...]
    """Students that would mix recipes or stages in a curve, or double a point, with the reason."""
    scaling: tuple[ScalingRow, ...]
    """Slope and plateau of recovery by training tokens and by size, for families of three or more points."""
    crossovers: tuple[CrossoverRow, ...]
    """Where the fitted lines of two families cross."""
    distances: tuple[DistanceRow, ...]
    """KL divergence and top-1 agreement per text and part of it, with the roundings of the yardstick."""
    probes: tuple[ProbeRow, ...]
    """Recurrent states while needles are read, per layer and segment."""
    tolerances: tuple[ToleranceRow, ...]
    """Share of benchmarks and documents within a tolerance of the teacher, per student and scope."""
    agreements: tuple[AgreementRow, ...]
    """Every student compared with its teacher, per protocol and scope: agreement, retained, flips."""
    agreements_by_benchmark: tuple[AgreementRow, ...]
    """The same per benchmark and context."""
    agreement_ceilings: tuple[AgreementRow, ...]
    """The same between training runs of one recipe, over all benchmarks: what another seed changes."""
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
    _computed: dict[Callable[..., Any], Any] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def of(self, compute: "Callable[[Report], T]") -> T:
        """What a function makes of the report, computed once."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        found: T = self._computed[compute]
        return found

    @property
    def checkpoints(self) -> tuple[CheckpointEntry, ...]:
        """The checkpoints, each teacher followed by its students."""
        return self.tensor.checkpoints

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
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
        """Number of compared documents over benchmarks, protocols and contexts, equal requests once."""
        counts: dict[CellKey, int] = {}
        cells = self.tensor.cells
        for cell in (cells[i] for i in self.tensor.counting.once(cells)):
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

    def leading_average(self, checkpoint: int, protocol: str) -> AverageRow | None:
        """The average row over the informative benchmarks, or over all where none is."""
        return self.average(checkpoint, protocol, INFORMATIVE) or self.average(checkpoint, protocol)

    def agreement_with_teacher(self, checkpoint: int, protocol: str, scope: str = ALL) -> AgreementRow | None:
        """The agreement row of a student in a scope."""
        for row in self.agreements:
            if (row.checkpoint, row.protocol, row.scope) == (checkpoint, protocol, scope):
                return row
        return None

    def leading_agreement(self, checkpoint: int, protocol: str) -> AgreementRow | None:
        """The agreement row over the informative benchmarks, or over all where none is."""
        informative = self.agreement_with_teacher(checkpoint, protocol, INFORMATIVE)
        return informative or self.agreement_with_teacher(checkpoint, protocol)

    def tolerance(self, checkpoint: int, protocol: str, scope: str = ALL) -> ToleranceRow | None:
        """The tolerance curve of a student in a scope."""
        for row in self.tolerances:
            if (row.checkpoint, row.protocol, row.scope) == (checkpoint, protocol, scope):
                return row
        return None

    def distance(self, checkpoint: int, text: str = ANSWERS) -> DistanceRow | None:
        """The distance of a student over a whole text; that of its recipe, trained again, if none other."""
        for row in self.distances:
            if (row.checkpoint, row.text, row.kind) == (checkpoint, text, "all"):
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
    teachers = [i for i, checkpoint in enumerate(tensor.checkpoints) if checkpoint.is_teacher]
    informative = [row for pool in pools.values() for i in teachers for row in informative_rows(pool, i)]
    names = {
        protocol: {i: informative_names(informative, i, protocol) for i in teachers} for protocol in pools
    }
    averages = [row for name, pool in pools.items() for row in average_rows(pool, names[name])]
    pairs = [row for pool in pools.values() for row in pair_rows(pool)]
    both = GapPool(tensor)
    gaps = gap_rows(both)
    doctor = read_doctor(runs)
    papers = paper_rows(pools["loglikelihood"])
    scores, drops = benchmark_rows(tensor, pools), drop_rows(tensor, pools)
    recall = [row for pool in pools.values() for row in recall_rows(pool)]
    families, left_out = families_of(tensor)
    scaled = [scaling_rows(pool, names[name]) for name, pool in pools.items()]
    agreements, by_benchmark, ceilings = _agreements(tensor, pools, names)
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
        informative=tuple(informative),
        letters=tuple(letter_rows(tensor)),
        recall=tuple(recall),
        recall_correlations=tuple(recall_correlations(tensor, recall, _ranking_recoveries(averages))),
        families=tuple(families),
        left_out_of_families=tuple(left_out),
        scaling=tuple(row for rows, _ in scaled for row in rows),
        crossovers=tuple(row for _, rows in scaled for row in rows),
        distances=tuple(distance_rows(tensor, read_distances(runs))),
        probes=tuple(probe_rows(tensor, read_probes(runs))),
        tolerances=tuple(row for name, pool in pools.items() for row in tolerance_rows(pool, names[name])),
        agreements=tuple(agreements),
        agreements_by_benchmark=tuple(by_benchmark),
        agreement_ceilings=tuple(ceilings),
        paper_comparison=tuple(papers),
        paper_orders=tuple(paper_orders(pools["loglikelihood"], papers)),
        replicates=tuple(replicates_of(tensor, averages)),
        doctor=tuple(doctor),
        efficiency=tuple(read_efficiency(runs)),
        selections=tuple(read_selections(runs)),
        ablations=tuple(ablations_of(tensor, pairs, gaps)),
        loss_curves=tuple(read_loss_curves(runs, _labels(tensor.merged))),
        environments=tuple(read_facts(run) for run in runs),
        warnings=report_warnings(tensor, averages, drops, gaps, informative, doctor),
    )


def _agreements(
    tensor: ResultTensor, pools: Mapping[str, Pool], informative: Mapping[str, Mapping[int, Sequence[str]]]
) -> tuple[list[AgreementRow], list[AgreementRow], list[AgreementRow]]:
    """Rows per scope and per benchmark of the students of every teacher, and between runs of one recipe."""
    rows, by_benchmark, ceilings = [], [], []
    for protocol, whole in pools.items():
        for teacher, names in informative[protocol].items():
            pool = AgreementPool(tensor, protocol, teacher)
            rows += agreement_rows(pool, whole.recipes, names)
            by_benchmark += benchmark_agreement_rows(pool)
        ceilings += ceiling_rows(tensor, protocol, whole.recipes, informative[protocol])
    return rows, by_benchmark, ceilings


def _ranking_recoveries(averages: Sequence[AverageRow]) -> dict[int, float]:
    """Student → its recovery under log-likelihood over the informative benchmarks, where it is complete."""
    return {
        row.checkpoint: point
        for row in averages
        if (row.protocol, row.scope) == ("loglikelihood", INFORMATIVE)
        and not row.missing
        and (point := row.recovery.point) is not None
    }


def _labels(merged: MergedPlan) -> list[dict[str, str | None]]:
    """Per run, a map from its own labels to those of the report; None for checkpoints that are left out."""

    def shown(run: int, checkpoint: Checkpoint) -> str | None:
        return next((each.label for each in merged.checkpoints if each.has(run, checkpoint)), None)

    return [
        {each.label: shown(run, each) for each in plan.checkpoints} for run, plan in enumerate(merged.plans)
    ]
