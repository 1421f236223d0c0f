"""The report: all rows, warnings and sidecar data that outputs are made of, computed once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.analysis.averages import average_rows
from evalsuite.reports.analysis.benchmark_rows import benchmark_rows, drop_rows
from evalsuite.reports.analysis.gaps import GapPool, agreement_of, agreement_over_all, gap_rows
from evalsuite.reports.analysis.informative import (
    InformativeRow,
    informative_names,
    informative_rows,
)
from evalsuite.reports.analysis.pairs import pair_rows
from evalsuite.reports.analysis.replicates import Replicates, replicates_of
from evalsuite.reports.analysis.result_tensor import ResultTensor, load_result_tensor
from evalsuite.reports.analysis.rows import Agreement, AverageRow, BenchmarkRow, DropRow, GapRow, PairRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, Pool
from evalsuite.reports.analysis.warnings import report_warnings
from evalsuite.reports.records.merging import CellKey, CheckpointEntry
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.sidecars import (
    DoctorResult,
    read_doctor,
)
from evalsuite.reports.run import Benchmark, read_facts

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
    replicates: tuple[Replicates, ...]
    doctor: tuple[DoctorResult, ...]
    environments: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]
    _computed: dict[Callable[..., Any], Any] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def with_(self, **changes: Any) -> "Report":
        """The report with other fields, and all that is computed."""
        found = replace(self, **changes)
        found._computed.update(self._computed)
        return found

    def of(self, compute: "Callable[[Report], T]") -> T:
        """What a function makes of the report, computed once."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        found: T = self._computed[compute]
        return found

    def having(self, compute: "Callable[[Report], T]", made: T) -> "Report":
        """The report in which `compute` has made this, such as rows without paths."""
        found = self.with_()
        found._computed[compute] = made
        return found

    def forget(self, compute: "Callable[[Report], Any]") -> None:
        """Free what a function made."""
        self._computed.pop(compute, None)

    def informative_names(self, protocol: str) -> dict[int, tuple[str, ...]]:
        """Teacher → its informative benchmarks."""
        return {teacher: informative_names(self.informative, teacher, protocol) for teacher in self.teachers}

    @property
    def runs(self) -> tuple[Path, ...]:
        """The run folders."""
        return self.tensor.merged.runs

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
        RunFolderError, DataError, ConfigError: as `load_result_tensor`, and what `read_doctor` raises.
    """
    tensor = load_result_tensor(runs, selection)
    pools = pools_of(tensor)
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
        informative=tuple(informative),
        replicates=tuple(replicates_of(tensor, averages)),
        doctor=tuple(doctor),
        environments=tuple(read_facts(run) for run in runs),
        warnings=report_warnings(tensor, averages, drops, gaps, informative, doctor),
    ).having(resampled, pools)


def pools_of(tensor: ResultTensor) -> dict[str, Pool]:
    """The cells of every protocol, resampled when first needed."""
    return {protocol: Pool(tensor, protocol) for protocol in PROTOCOLS}


def resampled(report: Report) -> dict[str, Pool]:
    """The cells of every protocol for `Report.of`; `Report.forget` frees them when all rows are computed."""
    return pools_of(report.tensor)
